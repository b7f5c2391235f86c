#!/bin/bash
# systemd 252 orders a version that ends in two tildes after the one that ends in one; dpkg orders it before.
#
# Both sort "~" before the end of the text, so 1.0~ is older than 1.0. systemd's comparison (strverscmp_improved, which systemd-boot
# uses for its entries too) does so for one tilde at the end only, dpkg for any number. Where more text follows the two agree.
#
# Seen on 2026-11-27 with systemd 252.38 and dpkg 1.21.22:
#   1.0~~  and 1.0~  : systemd later,   dpkg earlier
#   1.0~~1 and 1.0~1 : systemd earlier, dpkg earlier
#   1.0~   and 1.0   : systemd earlier, dpkg earlier
set -euo pipefail
compare() {
	local rc=0
	systemd-analyze compare-versions "$1" "$2" >/dev/null || rc=$?
	case $rc in 11) printf later ;; 12) printf earlier ;; *) printf equal ;; esac
	dpkg --compare-versions "$1" lt "$2" && echo ' earlier' || echo ' later'
}
systemd-analyze --version | head -1
for pair in '1.0~~ 1.0~' '1.0~~1 1.0~1' '1.0~ 1.0'; do echo "$pair: systemd and dpkg: $(compare $pair)"; done
test "$(compare '1.0~~' '1.0~')" = 'later earlier'
test "$(compare '1.0~~1' '1.0~1')" = 'earlier earlier'
test "$(compare '1.0~' '1.0')" = 'earlier earlier'
