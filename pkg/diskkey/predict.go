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
	Events     []attest.Event // event log of the running boot
	SecureBoot Digest         // PCR 7 of the running boot
	Enabled    bool           // Secure Boot is on
	DB, DBX    []byte         // content of the variables
}

// Image is a boot image in a file.
type Image struct {
	io.ReaderAt
	Size int64 // bytes
}

// PredictImage returns the measurements of the next boot if the boot image is the only change: a
// new version, or the former version at a rollback. running is the boot image of the running
// version. It fails if the event log does not explain PCR 7, or if db or dbx have changed in this
// boot: then the next value is not known.
func PredictImage(f Firmware, next, running Image) (b Boot, err error) {
	if b.Image, b.Signatures, err = readImage(next); err != nil {
		return b, err
	}
	events := of(f.Events, pcrSecureBoot)
	if replay(events) != f.SecureBoot {
		return b, fmt.Errorf("PCR 7 of the next boot is not known: it is %x, and the event log gives %x", f.SecureBoot, replay(events))
	}
	if !f.Enabled {
		b.SecureBoot = f.SecureBoot
		return b, nil
	}
	// The next boot measures the present variables.
	for i, name := range []string{"db", "dbx"} {
		digest := attest.VariableDigest(name, [][]byte{f.DB, f.DBX}[i])
		if !slices.ContainsFunc(events, func(e attest.Event) bool { return e.Digest == digest }) {
			return b, fmt.Errorf("PCR 7 of the next boot is not known: the variable %s is not the one in the event log, so it has changed since the start of the system", name)
		}
	}
	now, err := authority(running, running.Size, f.DB, f.DBX)
	if err != nil {
		return b, fmt.Errorf("the running boot image: %w", err)
	}
	then, err := authority(next, next.Size, f.DB, f.DBX)
	if err != nil {
		return b, err
	}
	b.SecureBoot = replay(withAuthority(events, now, then))
	return b, nil
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

// withAuthority returns the events of PCR 7 of a boot in which the certificate with the digest then
// accepts the boot image, in place of the certificate with the digest now. Firmware measures each
// certificate once, when it first accepts a program: first those of option ROMs, then that of the
// boot loader, then that of the boot image. An upgrade does not replace the programs before the
// boot image, so their certificates stay. The first certificate after the separator is never that
// of the boot image alone.
func withAuthority(events []attest.Event, now, then Digest) []attest.Event {
	at := slices.IndexFunc(events, func(e attest.Event) bool { return e.Digest == separator })
	if at < 0 || now == then {
		return events
	}
	out := slices.Clone(events)
	if last := len(out) - 1; last > at+1 && out[last].Digest == now {
		out = out[:last]
	}
	if !slices.ContainsFunc(out[at+1:], func(e attest.Event) bool { return e.Digest == then }) {
		out = append(out, attest.Event{PCR: pcrSecureBoot, Digest: then})
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
