package boot

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
)

// Section is a section that UKI adds to the stub (UAPI group, "Unified Kernel Image").
type Section struct {
	Name    string // at most 8 bytes, with the leading dot
	Content []byte
}

// Offsets and flags of PE headers (Microsoft, "PE Format"). The package debug/pe reads these
// headers but cannot write them. Offsets are in bytes from the beginning of the header.
const (
	peHeaderPointer   = 0x3c // offset of the PE signature
	coffSections      = 2    // in the COFF header: number of sections
	coffOptionalSize  = 16
	coffLen           = 20
	optionalInitData  = 8  // in the optional header: size of initialized data
	optionalEntry     = 16 // address that the firmware calls
	optionalSizeImage = 56
	optionalChecksum  = 64
	sectionHeaderLen  = 40
	sectionAlignment  = 4096
	code              = 0x00000020 // section flags
	initialisedData   = 0x00000040
	memoryExecute     = 0x20000000
	memoryRead        = 0x40000000
)

// UKI appends sections to a copy of a loader stub (systemd's linuxx64.efi.stub), in the given
// order. Each section begins on a page of its own, so that the stub can run the kernel in place.
//
// The first section that UKI adds contains the guard, which the firmware starts in place of the
// stub. With the guard, the kernel always gets the command line in the section .cmdline. In the
// stub itself, UKI changes only the headers and the names of its other inputs (closeInputs).
func UKI(stub []byte, sections []Section) ([]byte, error) {
	sections = append([]Section{{Name: guardSection}}, sections...)
	f, err := pe.NewFile(bytes.NewReader(stub))
	if err != nil {
		return nil, fmt.Errorf("loader stub: cannot read as PE: %w", err)
	}
	opt, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return nil, fmt.Errorf("loader stub: is not a 64-bit PE file")
	}
	coff := int(binary.LittleEndian.Uint32(stub[peHeaderPointer:])) + 4
	optional := coff + coffLen
	table := optional + int(binary.LittleEndian.Uint16(stub[coff+coffOptionalSize:]))
	end := table + (len(f.Sections)+len(sections))*sectionHeaderLen
	if end > int(opt.SizeOfHeaders) {
		return nil, fmt.Errorf("loader stub: its headers have no room for %d more sections (%d bytes needed, %d there)", len(sections), end, opt.SizeOfHeaders)
	}
	address := uint32(0)
	for _, s := range f.Sections {
		address = max(address, s.VirtualAddress+s.VirtualSize)
	}

	out := bytes.Clone(stub)
	if err := closeInputs(out); err != nil {
		return nil, err
	}
	out = append(out, make([]byte, roundUp(len(out), int(opt.FileAlignment))-len(out))...)
	initData := opt.SizeOfInitializedData
	for i, s := range sections {
		if len(s.Name) > 8 {
			return nil, fmt.Errorf("section %s: name is longer than 8 bytes", s.Name)
		}
		address = uint32(roundUp(int(address), sectionAlignment))
		flags := uint32(initialisedData | memoryRead)
		if i == 0 {
			flags = code | memoryExecute | memoryRead
			s.Content = guard(address, opt.AddressOfEntryPoint)
			binary.LittleEndian.PutUint32(out[optional+optionalEntry:], address)
		}
		raw := roundUp(len(s.Content), int(opt.FileAlignment))
		h := out[table+(len(f.Sections)+i)*sectionHeaderLen:][:sectionHeaderLen]
		copy(h, s.Name)
		binary.LittleEndian.PutUint32(h[8:], uint32(len(s.Content)))
		binary.LittleEndian.PutUint32(h[12:], address)
		binary.LittleEndian.PutUint32(h[16:], uint32(raw))
		binary.LittleEndian.PutUint32(h[20:], uint32(len(out)))
		binary.LittleEndian.PutUint32(h[36:], flags)
		out = append(out, s.Content...)
		out = append(out, make([]byte, raw-len(s.Content))...)
		address += uint32(len(s.Content))
		initData += uint32(raw)
	}
	binary.LittleEndian.PutUint16(out[coff+coffSections:], uint16(len(f.Sections)+len(sections)))
	binary.LittleEndian.PutUint32(out[optional+optionalInitData:], initData)
	binary.LittleEndian.PutUint32(out[optional+optionalSizeImage:], uint32(roundUp(int(address), int(opt.SectionAlignment))))
	binary.LittleEndian.PutUint32(out[optional+optionalChecksum:], 0)
	return out, nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
