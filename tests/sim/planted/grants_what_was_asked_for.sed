s/decision->granted = effect.granted;/decision->granted = call->most;/
