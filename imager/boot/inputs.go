package boot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unicode/utf16"
)

// inputs are the names by which systemd's stub finds arguments and initramfs files outside the boot
// image (systemd 257, src/boot/stub.c). Each name is a constant in the stub, and ends with a zero.
var inputs = []struct {
	what string
	name []byte
}{
	// The function cmdline_append_and_measure_smbios uses this name even if Secure Boot is on.
	{"arguments from the firmware's SMBIOS table", []byte("io.systemd.stub.kernel-cmdline-extra\x00")},
	{"arguments and initramfs archives from add-ons on the ESP", utf16le(".addon.efi\x00")},
}

// closeInputs overwrites the names of all inputs in a stub. The new bytes occur in no SMBIOS text,
// and in no file name that the stub accepts. An error means that the stub has changed: compare the
// source of the new stub with inputs.
func closeInputs(stub []byte) error {
	for _, input := range inputs {
		if n := bytes.Count(stub, input.name); n != 1 {
			return fmt.Errorf("loader stub: the name by which the stub finds %s occurs %d times, want once; compare the source of the stub with imager/boot/inputs.go", input.what, n)
		}
		at := bytes.Index(stub, input.name)
		for i := range bytes.TrimRight(input.name, "\x00") {
			stub[at+i] = 0xff
		}
	}
	return nil
}

// utf16le returns a text in UTF-16LE, the encoding of UEFI.
func utf16le(text string) (out []byte) {
	for _, unit := range utf16.Encode([]rune(text)) {
		out = binary.LittleEndian.AppendUint16(out, unit)
	}
	return out
}
