package diskkey

import (
	"bytes"
	"crypto/sha256"
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/secureboot"
)

// Firmware is what the firmware of the machine measured and accepts at present.
type Firmware struct {
	Events  []attest.Event // event log of the running boot
	Enabled bool           // Secure Boot is on
	DB, DBX []byte         // content of the variables
}

// PredictImage returns the measurements of the next boot if the boot image is the only change: a
// new version, or the former version at a rollback.
func PredictImage(f Firmware, image io.ReaderAt, size int64) (b Boot, err error) {
	if b.Image, b.Signatures, err = readImage(image); err != nil {
		return b, err
	}
	events := of(f.Events, pcrSecureBoot)
	if !f.Enabled {
		b.SecureBoot = replay(events)
		return b, nil
	}
	authority, err := authority(image, size, f.DB, f.DBX)
	if err != nil {
		return b, err
	}
	b.SecureBoot = replay(withAuthority(events, authority))
	return b, nil
}

// PredictVariables returns PCR 7 of the next boot if the content of the variables of Secure Boot is
// the only change: PK, KEK, db or dbx, each with its new content. The new content must still accept
// the boot loader and the boot image by the same certificates.
func PredictVariables(f Firmware, changed map[string][]byte) (Digest, error) {
	events := slices.Clone(of(f.Events, pcrSecureBoot))
	for name, content := range changed {
		at := slices.IndexFunc(events, func(e attest.Event) bool { return measuresVariable(e, name) })
		if at < 0 {
			return Digest{}, fmt.Errorf("PCR 7: the event log does not show the variable %s, so the next value cannot be predicted", name)
		}
		events[at] = attest.Event{PCR: pcrSecureBoot, Digest: attest.VariableDigest(name, content)}
	}
	return replay(events), nil
}

// of returns the events of a PCR.
func of(events []attest.Event, pcr uint32) (out []attest.Event) {
	for _, e := range events {
		if e.PCR == pcr && e.Type != attest.NoAction {
			out = append(out, e)
		}
	}
	return out
}

// replay returns the value of a PCR after its events.
func replay(events []attest.Event) (value Digest) {
	for _, e := range events {
		value = sha256.Sum256(append(value[:], e.Digest[:]...))
	}
	return value
}

// measuresVariable reports whether an event measures a variable of Secure Boot with the name. The
// data of the event must have the digest of the event; otherwise they prove nothing.
func measuresVariable(e attest.Event, name string) bool {
	const guid, lengths = 16, 16
	if len(e.Data) < guid+lengths || sha256.Sum256(e.Data) != e.Digest {
		return false
	}
	letters := binary.LittleEndian.Uint64(e.Data[guid:])
	rest := e.Data[guid+lengths:]
	if letters != uint64(len(name)) || uint64(len(rest)) < 2*letters {
		return false
	}
	for i := range name {
		if binary.LittleEndian.Uint16(rest[2*i:]) != uint16(name[i]) {
			return false
		}
	}
	return true
}

// authority returns the digest with which the firmware measures the certificate in db that accepts
// an image (EV_EFI_VARIABLE_AUTHORITY: the variable db with this entry only, TCG PC Client Platform
// Firmware Profile 1.06, section 3.3.4.8). Firmware takes the first entry that accepts the image.
func authority(image io.ReaderAt, size int64, db, dbx []byte) (Digest, error) {
	entries, err := secureboot.ParseLists(db)
	if err != nil {
		return Digest{}, fmt.Errorf("variable db: %w", err)
	}
	refused := errors.New("db is empty")
	for _, e := range entries {
		if refused = secureboot.Accept(image, size, oneEntry(e), dbx); refused == nil {
			return attest.VariableDigest("db", slices.Concat(e.Owner[:], e.Data)), nil
		}
	}
	return Digest{}, fmt.Errorf("the firmware would not start the boot image: %w", refused)
}

// oneEntry returns a signature database with a single entry.
func oneEntry(e secureboot.Entry) []byte {
	each := uint32(len(e.Owner) + len(e.Data))
	out := slices.Clone(e.Type[:])
	out = binary.LittleEndian.AppendUint32(out, 28+each)
	out = binary.LittleEndian.AppendUint32(out, 0)
	out = binary.LittleEndian.AppendUint32(out, each)
	return slices.Concat(out, e.Owner[:], e.Data)
}

// separator is the digest of the event with which the firmware ends the variables in PCR 7.
var separator = Digest(sha256.Sum256(make([]byte, 4)))

// withAuthority returns the events of PCR 7 of a boot in which the certificate with the digest
// accepts the boot image. Firmware measures each certificate once. The first certificate after the
// separator is that of the boot loader, which an upgrade does not replace. The others are those of
// the former boot image.
func withAuthority(events []attest.Event, authority Digest) []attest.Event {
	at := slices.IndexFunc(events, func(e attest.Event) bool { return e.Digest == separator })
	if at < 0 {
		return events
	}
	out := slices.Clone(events[:min(at+2, len(events))])
	if !slices.ContainsFunc(out[at+1:], func(e attest.Event) bool { return e.Digest == authority }) {
		out = append(out, attest.Event{PCR: pcrSecureBoot, Digest: authority})
	}
	return out
}

// readImage returns the value of PCR 11 after a boot image, and the signatures in the image.
func readImage(image io.ReaderAt) (value Digest, s Signatures, err error) {
	f, err := pe.NewFile(image)
	if err != nil {
		return value, s, fmt.Errorf("boot image: %w", err)
	}
	for _, name := range attest.MeasuredSections {
		section := f.Section(name)
		if section == nil || section.VirtualSize == 0 {
			continue
		}
		sum := sha256.New()
		if n, err := io.CopyN(sum, section.Open(), int64(section.VirtualSize)); err != nil {
			return value, s, fmt.Errorf("boot image: section %s is truncated after %d bytes: %w", name, n, err)
		}
		label := sha256.Sum256([]byte(name + "\x00"))
		value = sha256.Sum256(append(value[:], label[:]...))
		value = sha256.Sum256(append(value[:], sum.Sum(nil)...))
	}
	section := f.Section(".pcrsig")
	if section == nil {
		return value, s, nil // Check reports that there is no signature
	}
	if section.VirtualSize > maxSignatures {
		return value, s, errors.New("boot image: section .pcrsig is too large")
	}
	text := make([]byte, section.VirtualSize)
	if _, err := io.ReadFull(section.Open(), text); err != nil {
		return value, s, fmt.Errorf("boot image: section .pcrsig: %w", err)
	}
	s, err = ParseSignatures(bytes.TrimRight(text, "\x00"))
	return value, s, err
}
