# SPDX-License-Identifier: Apache-2.0
#
# Completes the verbs of spile, the options of each, and what can be completed of their values.

_spile() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} options
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'take peek charge refund clear simulate replay check show repair --help --version' -- "$current")
        return
    fi
    case ${COMP_WORDS[1]} in
    take) options='--store --key-prefix --limit --limits --route --tier --cost --wait --timeout --on-error --json --help' ;;
    peek) options='--store --key-prefix --limit --limits --route --tier --cost --timeout --on-error --json --help' ;;
    charge | refund) options='--store --key-prefix --limit --limits --route --tier --cost --timeout --json --help' ;;
    clear) options='--store --key-prefix --limit --limits --route --tier --simulated --timeout --json --help' ;;
    simulate) options='--store --limit --cost --timeout --help' ;;
    replay) options='--limit --limits --tier --by --fields --top --json --help' ;;
    check) options='--explain --tier --markdown --json --help' ;;
    show) options='--store --key-prefix --limits --timeout --json --help' ;;
    repair) options='--store --timeout --json --help' ;;
    *) return ;;
    esac
    # A ':' or '=' is a word of its own to bash, so an address or MAX behind one is left to the user.
    case $previous in
    --by)
        mapfile -t COMPREPLY < <(compgen -W 'ip route' -- "$current")
        return
        ;;
    --store)
        mapfile -t COMPREPLY < <(compgen -W 'memory: lmdb: redis:// redis+unix://' -- "$current")
        compopt -o nospace
        return
        ;;
    --on-error)
        mapfile -t COMPREPLY < <(compgen -W 'fail open closed' -- "$current")
        return
        ;;
    --fields)
        # The last of a list that commas separate; '=' is a word of its own to bash.
        mapfile -t COMPREPLY < <(compgen -W 'time= ip= method= path= status= request=' -- "$current")
        compopt -o nospace
        return
        ;;
    --limits)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames
        return
        ;;
    --key-prefix | --limit | --cost | --timeout | --top | --explain | --route | --tier) return ;;
    esac
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    elif [[ ${COMP_WORDS[1]} == @(simulate|replay|check) ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames
    fi
}

complete -F _spile spile
