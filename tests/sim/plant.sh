#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Writes a copy of a source file with one fault planted in it: plant.sh SED-SCRIPT SOURCE COPY
set -eu
sed -f "$1" "$2" >"$3"
if cmp -s "$2" "$3"; then
  rm -f "$3"
  echo "$1: $2 has changed so that nothing is planted; write the fault anew" >&2
  exit 1
fi
