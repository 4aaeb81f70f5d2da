#!/bin/sh
# Prints a Lua file as a C string constant: embed.sh FILE NAME. Comment lines and indentation stay out, since every byte
# of a script travels to each server that does not know it yet.
set -eu
printf '/* Made from %s. */\nstatic const char %s[] =\n' "$(basename "$1")" "$2"
sed -e 's/^[[:space:]]*//' -e '/^--/d' -e '/^$/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$/\\n"/' "$1"
printf '    ;\n'
