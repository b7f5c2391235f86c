#!/bin/bash
# systemd-boot 257 does not report its own partition if another systemd-boot ran before it in the same boot; systemd-boot 252 does.
#
# A loader that cannot load its entry returns to the firmware, which starts the loader of the next disk. Both versions set the EFI
# variable LoaderDevicePartUUID, "the partition GUID of the ESP the boot loader was run from" (Boot Loader Interface), but 257 only if
# it is not set yet (src/boot/export-vars.c). So it names the disk that was not booted. The variable StubDevicePartUUID, which
# systemd-stub sets since 257, names the partition of the started image in any case.
#
# Two disks: the entry on the ESP of the first (aaaaaaaa-...) is a text, the entry on the ESP of the second (bbbbbbbb-...) is an EFI
# shell that prints the variable.
#
# Seen on 2026-11-28 under QEMU 7.2 and OVMF 2025.02:
#   systemd-boot 252.39-1~deb12u2: bbbbbbbb
#   systemd-boot 257.13-1~deb13u1: aaaaaaaa
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export PATH=$PATH:/usr/sbin
for tool in qemu-system-x86_64:qemu-system-x86 mcopy:mtools mkfs.fat:dosfstools sfdisk:fdisk; do
	command -v "${tool%:*}" >/dev/null || apt-get install -y --no-install-recommends "${tool#*:}" >/dev/null
done
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "Debian" { print $2; exit }')
mkdir -p lists/partial cache/archives/partial
for suite in bookworm trixie; do
	echo "deb [target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
done >sources.list
: >status
cat >apt.conf <<APT
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::Cache "$dir/cache";
APT::Sandbox::User "root";
APT
apt-get -c "$dir/apt.conf" -qq update
fetch() { # NAME VERSION
	apt-get -c "$dir/apt.conf" -qq download "$1=$2"
	dpkg -x "$1"_*.deb "$1-$2"
	rm "$1"_*.deb
}
fetch efi-shell-x64 2025.02-8+deb13u1
fetch ovmf 2025.02-8+deb13u1
shell=$(find efi-shell* -name 'shellx64.efi')
printf 'title shell\nefi /shellx64.efi\n' >shell.conf
printf 'dmpstore LoaderDevicePartUUID -guid 4a67b082-0a4c-41cf-b6c7-440b29bb8c4f\nreset -s\n' >startup.nsh
disk() { # FILE GUID LOADER PROGRAM: a disk with an ESP, and an entry that starts the program
	truncate -s 64M "$1"
	printf 'label: gpt\nstart=2048, size=98304, type=U, uuid=%s\n' "$2" | sfdisk -q "$1"
	mkfs.fat -F32 --offset 2048 "$1" 49152 >/dev/null 2>&1
	mmd -i "$1@@1M" ::EFI ::EFI/BOOT ::loader ::loader/entries
	mcopy -i "$1@@1M" "$3" ::EFI/BOOT/BOOTX64.EFI
	mcopy -i "$1@@1M" shell.conf ::loader/entries/
	mcopy -i "$1@@1M" "$4" ::shellx64.efi
	mcopy -i "$1@@1M" startup.nsh ::
}
first=aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa second=bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb
named() { # VERSION: the first digits of the variable
	fetch systemd-boot-efi "$1"
	local loader=systemd-boot-efi-$1/usr/lib/systemd/boot/efi/systemd-bootx64.efi
	rm -f a b
	disk a $first "$loader" shell.conf
	disk b $second "$loader" "$shell"
	cp ovmf-*/usr/share/OVMF/OVMF_VARS_4M.fd vars
	timeout 600 qemu-system-x86_64 -M q35 -m 512 -display none -serial file:log -monitor none -net none -no-reboot \
		-drive if=pflash,unit=0,format=raw,readonly=on,file="$(echo ovmf-*/usr/share/OVMF/OVMF_CODE_4M.fd)" -drive if=pflash,unit=1,format=raw,file=vars \
		-drive if=none,id=a,format=raw,file=a -device virtio-blk-pci,drive=a,bootindex=1 \
		-drive if=none,id=b,format=raw,file=b -device virtio-blk-pci,drive=b,bootindex=2 || return
	tr -d '\0\r' <log | grep -aoE '\*([0-9A-F]\.){8}' | head -1 | tr -d '*.' | tr A-F a-f
}
old=$(named 252.39-1~deb12u2)
new=$(named 257.13-1~deb13u1)
echo "systemd-boot 252.39-1~deb12u2: $old"
echo "systemd-boot 257.13-1~deb13u1: $new"
test "$old $new" = 'bbbbbbbb aaaaaaaa'
