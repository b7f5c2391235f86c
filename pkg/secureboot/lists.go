package secureboot

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// GUID is a GUID in the byte order of UEFI: the first three fields are little-endian.
type GUID [16]byte

// The types of signature lists that Accept evaluates (UEFI 2.10, section 32.4.1).
var (
	// TypeX509 is the type of certificates (DER).
	TypeX509 = GUID{0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72}
	// TypeSHA256 is the type of SHA-256 digests of images.
	TypeSHA256 = GUID{0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28}
	// typeX509SHA256 is the type of SHA-256 digests of the signed part of certificates. Each digest
	// has a time of revocation.
	typeX509SHA256 = GUID{0x92, 0xa4, 0xd2, 0x3b, 0xc0, 0x96, 0x79, 0x40, 0xb4, 0x20, 0xfc, 0xf9, 0x8e, 0xf1, 0x03, 0xed}
)

// Entry is an element of a signature database.
type Entry struct {
	Type  GUID
	Owner GUID
	Data  []byte // content; a part of the slice that was passed to ParseLists
}

// Sizes of EFI_SIGNATURE_LIST and EFI_SIGNATURE_DATA in bytes.
const (
	listHeader  = 28 // type, size of the list, size of its header, size of each element
	entryHeader = 16 // GUID of the owner
)

// ParseLists parses the signature lists of a database. The argument is the content of db, dbx, KEK
// or PK, without the attributes of the variable (UEFI 2.10, section 32.4.1). ParseLists reads each
// byte at most once.
func ParseLists(database []byte) (all []Entry, err error) {
	for rest := database; len(rest) > 0; {
		if len(rest) < listHeader {
			return nil, fmt.Errorf("signature list: %d bytes remain, and its header has %d", len(rest), listHeader)
		}
		kind := GUID(rest[:16])
		size := uint64(binary.LittleEndian.Uint32(rest[16:]))
		header := uint64(binary.LittleEndian.Uint32(rest[20:]))
		each := uint64(binary.LittleEndian.Uint32(rest[24:]))
		if size < listHeader+header || size > uint64(len(rest)) {
			return nil, fmt.Errorf("signature list: its size of %d bytes is impossible", size)
		}
		content := rest[listHeader+header : size]
		rest = rest[size:]
		if len(content) == 0 {
			continue
		}
		if each <= entryHeader || uint64(len(content))%each != 0 {
			return nil, errors.New("signature list: its elements have an impossible size")
		}
		for ; len(content) > 0; content = content[each:] {
			all = append(all, Entry{Type: kind, Owner: GUID(content[:entryHeader]), Data: content[entryHeader:each]})
		}
	}
	return all, nil
}
