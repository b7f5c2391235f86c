package secureboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/foxboron/go-uefi/efi/signature"
	"github.com/foxboron/go-uefi/efi/util"
	"github.com/foxboron/go-uefi/efivar"

	"github.com/orlop-os/orlop/pkg/secureboot"
)

// List returns a signature list with a single certificate (DER) of an owner. A variable contains a
// concatenation of lists.
func List(certificate []byte, owner secureboot.GUID) []byte {
	const header, entry = 28, 16 // UEFI 2.10, section 32.4.1
	out := slices.Clone(secureboot.TypeX509[:])
	out = binary.LittleEndian.AppendUint32(out, uint32(header+entry+len(certificate)))
	out = binary.LittleEndian.AppendUint32(out, 0)
	out = binary.LittleEndian.AppendUint32(out, uint32(entry+len(certificate)))
	return slices.Concat(out, owner[:], certificate)
}

// variables are the variables that Enroll knows.
var variables = map[string]efivar.Efivar{"PK": efivar.PK, "KEK": efivar.KEK, "db": efivar.Db}

// Enroll returns an enrollment file (.auth) for a variable PK, KEK or db. The file has
// EFI_VARIABLE_AUTHENTICATION_2, with a time and a signature, and the new content of the variable
// (UEFI 2.10, section 8.2.2). PK must sign the files for PK and KEK, and KEK the file for db.
// Firmware in setup mode accepts the file. Later, firmware accepts only a file with a newer time
// than the last file.
func (s Signer) Enroll(name string, content []byte, at time.Time) ([]byte, error) {
	variable, ok := variables[name]
	if !ok {
		return nil, fmt.Errorf("variable %s: PK, KEK or db expected", name)
	}
	at = at.UTC()
	header := signature.NewEFIVariableAuthentication2()
	header.Time = util.EFITime{
		Year: uint16(at.Year()), Month: uint8(at.Month()), Day: uint8(at.Day()),
		Hour: uint8(at.Hour()), Minute: uint8(at.Minute()), Second: uint8(at.Second()),
	}
	var signed bytes.Buffer
	for _, letter := range name {
		signed.Write([]byte{byte(letter), 0}) // UTF-16, without a terminating zero
	}
	for _, field := range []any{*variable.GUID, variable.Attributes, header.Time} {
		if err := binary.Write(&signed, binary.LittleEndian, field); err != nil {
			return nil, err
		}
	}
	signed.Write(content)
	value, err := s.signVariable(signed.Bytes())
	if err != nil {
		return nil, fmt.Errorf("variable %s: %w", name, err)
	}
	header.AuthInfo.CertData = value
	header.AuthInfo.Header.Length += uint32(len(value))
	var out bytes.Buffer
	header.Marshal(&out)
	out.Write(content)
	return out.Bytes(), nil
}

// Content returns the new content of the variable in an enrollment file. It does not verify the
// signature, because only the firmware has the certificate of the signer.
func Content(file []byte) ([]byte, error) {
	const at = 16 // the time; then the length of the signature with its header
	if len(file) < at+4 {
		return nil, errors.New("is not an enrollment file (.auth)")
	}
	signed := uint64(at) + uint64(binary.LittleEndian.Uint32(file[at:]))
	if signed > uint64(len(file)) {
		return nil, errors.New("is not an enrollment file (.auth)")
	}
	content := file[signed:]
	entries, err := secureboot.ParseLists(content)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, errors.New("enrolls no key")
	}
	return content, nil
}
