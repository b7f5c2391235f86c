package attest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The PCRs that a comparison interprets (TCG PC Client Platform Firmware Profile 1.06, section 3.3;
// systemd, "TPM2 PCR Measurements Made by systemd").
const (
	pcrPrograms   = 4  // programs that the firmware and the boot loader start
	pcrSecureBoot = 7  // variables of Secure Boot
	pcrFiles      = 10 // files that the kernel measures (IMA); not in the log of the firmware
	pcrImage      = 11 // sections of the boot image
	pcrParameters = 12 // command lines and credentials from outside the boot image
	pcrExtensions = 13 // extensions of the initramfs from outside the boot image
)

// Difference is a difference between the measurements of a machine and the expected versions.
type Difference struct {
	What  string `json:"what"`            // the difference, as a sentence
	Cause string `json:"cause,omitempty"` // what usually causes it
}

// Result is the result of a comparison.
type Result struct {
	Version     string       `json:"version,omitempty"` // booted by the machine; empty if unknown
	SecureBoot  string       `json:"secureBoot"`        // "on", "off" or "unknown"
	Differences []Difference `json:"differences,omitempty"`
}

// Compare compares a measurement with the versions that the machine may run. The boot loader may
// belong to any of these versions, because an upgrade does not replace the boot loader.
func (m Measured) Compare(releases []Release) Result {
	out := Result{SecureBoot: m.secureBoot()}
	out.add(m.compareLog())
	booted := slices.IndexFunc(releases, func(r Release) bool {
		value := r.ImagePCR()
		return m.PCRs[pcrImage] == value || m.PCRs[pcrImage] == AfterPhase(value, PhaseStorage)
	})
	if booted < 0 {
		out.add(m.compareSections(releases))
	} else {
		out.Version = releases[booted].Version
		out.add(m.compareClaims(releases[booted]))
		out.add(m.comparePhase(releases[booted]))
	}
	out.add(m.comparePrograms(releases, booted))
	for _, pcr := range []uint32{pcrParameters, pcrExtensions} {
		if m.PCRs[pcr] != (Digest{}) {
			out.add([]Difference{{
				fmt.Sprintf("PCR %d has a value: the boot got input that is not part of the boot image", pcr),
				"a command line of the loader, or credentials or extensions beside the boot image",
			}})
		}
	}
	if booted >= 0 {
		out.add(m.compareVariables(releases[booted], out.SecureBoot))
	}
	return out
}

func (r *Result) add(d []Difference) { r.Differences = append(r.Differences, d...) }

// compareLog compares the values of the PCRs with the values that follow from the event log.
func (m Measured) compareLog() (out []Difference) {
	values := Replay(m.Events)
	for pcr, value := range values {
		if pcr == pcrImage && m.PCRs[pcr] == AfterPhase(value, PhaseStorage) {
			continue // machined has opened the disks
		}
		if pcr != pcrFiles && value != m.PCRs[pcr] {
			out = append(out, Difference{
				fmt.Sprintf("PCR %d has the value %x, and the event log gives %x", pcr, m.PCRs[pcr], value),
				"a program has extended the PCR after the boot, or the log is not that of this boot",
			})
		}
	}
	return out
}

// compareClaims compares the claims of the machine with the version that it booted.
func (m Measured) compareClaims(r Release) (out []Difference) {
	if m.Claims.Version != r.Version || m.Claims.Root != r.Root {
		out = append(out, Difference{
			fmt.Sprintf("the machine says that it runs version %q with the root %q, and it booted version %s with the root %s", m.Claims.Version, m.Claims.Root, r.Version, r.Root),
			"another program answers in place of Orlop OS",
		})
	}
	return out
}

// comparePhase reports a version that can open encrypted disks and has not ended its phase. Such a
// version has the section .pcrpkey.
func (m Measured) comparePhase(r Release) []Difference {
	if m.PCRs[pcrImage] != r.ImagePCR() || !slices.ContainsFunc(r.Sections, func(s Section) bool { return s.Name == ".pcrpkey" }) {
		return nil
	}
	return []Difference{{
		"PCR 11: the phase " + PhaseStorage + " has not ended: the TPM continues to release the keys of encrypted disks",
		"another program runs in place of PID 1, the TPM has failed, or the machine has not reached its services yet",
	}}
}

// compareSections returns a difference for each measured section of the boot image that is in none
// of the versions with this digest.
func (m Measured) compareSections(releases []Release) []Difference {
	events := extended(m.Events, pcrImage)
	if len(events) == 0 {
		return []Difference{{"PCR 11 has no event: no boot image of Orlop OS has measured itself", "another boot loader or another system has started, or the boot image has another stub"}}
	}
	var out []Difference
	for i := 0; i+1 < len(events); i += 2 {
		at := slices.IndexFunc(MeasuredSections, func(name string) bool { return events[i].Digest == nameDigest(name) })
		if at < 0 {
			continue
		}
		name, digest := MeasuredSections[at], events[i+1].Digest
		if wanted := sectionDigests(releases, name); len(wanted) > 0 && !slices.Contains(wanted, digest) {
			out = append(out, Difference{fmt.Sprintf("PCR 11: section %s has digest %x, expected is %s", name, digest, joinDigests(wanted)), sectionCause(name)})
		}
	}
	if len(out) == 0 {
		out = append(out, Difference{fmt.Sprintf("PCR 11 has the value %x, which is that of no version", m.PCRs[pcrImage]), "a boot image with sections of several versions, or a program that extended the PCR"})
	}
	return out
}

func sectionDigests(releases []Release, name string) (out []Digest) {
	for _, r := range releases {
		for _, s := range r.Sections {
			if s.Name == name {
				out = append(out, s.Digest)
			}
		}
	}
	return out
}

// sectionCause returns the usual cause of a section with an unexpected digest.
func sectionCause(name string) string {
	switch name {
	case ".cmdline":
		return "another command line of the kernel, with another root hash or another argument: another version or profile"
	case ".linux", ".uname":
		return "another kernel: another version"
	case ".initrd":
		return "another initramfs: another version or profile"
	case ".osrel":
		return "another version, or a build with another boot loader or other keys of Secure Boot"
	}
	return "another version"
}

// comparePrograms compares the programs in PCR 4: the loader, the boot image, and the kernel if the
// stub starts it through the firmware. booted is the index of the version that PCR 11 shows;
// negative if PCR 11 shows no known version.
func (m Measured) comparePrograms(releases []Release, booted int) (out []Difference) {
	var programs []Digest
	for _, e := range extended(m.Events, pcrPrograms) {
		if !isText(e) {
			programs = append(programs, e.Digest)
		}
	}
	at := func(i int) (d Digest) {
		if i < len(programs) {
			d = programs[i]
		}
		return d
	}
	var loaders []Digest
	for _, r := range releases {
		if r.Loader != (Digest{}) && !slices.Contains(loaders, r.Loader) {
			loaders = append(loaders, r.Loader)
		}
	}
	switch {
	case len(programs) == 0:
		out = append(out, Difference{"PCR 4: the firmware started no program", "a firmware that does not measure what it starts"})
	case !slices.Contains(loaders, at(0)):
		out = append(out, Difference{fmt.Sprintf("PCR 4: the firmware started the program %x first, expected is the boot loader %s", at(0), joinDigests(loaders)),
			"the boot loader of another version (name the bundle of the installed version, too), a program that firmware or an option ROM starts, or a boot from the network or a medium"})
	}
	if booted < 0 || len(programs) == 0 {
		return out // compareSections or the lines above have reported the difference
	}
	r := releases[booted]
	if at(1) != r.Image {
		out = append(out, Difference{fmt.Sprintf("PCR 4: the loader started the program %x, expected is the boot image %x", at(1), r.Image), "a boot image with the same sections and another stub"})
	}
	for _, more := range programs[min(2, len(programs)):] {
		if more != r.Kernel {
			out = append(out, Difference{fmt.Sprintf("PCR 4: another program was started: %x", more), "a program that firmware or an option ROM starts"})
		}
	}
	return out
}

// maxText is the maximum size in bytes of the data of an event that is only a text or a separator.
// A 64-bit program is always larger.
const maxText = 128

// isText reports whether an event is a text or a separator of the firmware, not a program. It
// decides by the data, because the type of an event proves nothing: the PCR contains only the
// digest.
func isText(e Event) bool { return len(e.Data) <= maxText && sha256.Sum256(e.Data) == e.Digest }

// secureBoot returns the state of Secure Boot at the start of the loader: "on", "off" or "unknown".
func (m Measured) secureBoot() string {
	first := extended(m.Events, pcrSecureBoot)
	switch {
	case len(first) == 0:
	case first[0].Digest == VariableDigest(secureBootVariable, []byte{1}):
		return "on"
	case first[0].Digest == VariableDigest(secureBootVariable, []byte{0}), first[0].Digest == VariableDigest(secureBootVariable, nil):
		return "off"
	}
	return "unknown"
}

// compareVariables compares the variables of Secure Boot with the keys of the build. state is the
// result of secureBoot.
func (m Measured) compareVariables(r Release, state string) (out []Difference) {
	if r.SecureBoot == nil {
		return nil
	}
	if state != "on" {
		return []Difference{{"PCR 7: Secure Boot is " + state + ", and the version is signed for it", "switched off in the setup of the firmware, or the keys are not enrolled"}}
	}
	events := beforeSeparator(extended(m.Events, pcrSecureBoot))
	for _, name := range []string{"PK", "KEK", "db"} {
		want, known := r.SecureBoot[name]
		if known && !slices.ContainsFunc(events, func(e Event) bool { return e.Digest == want }) {
			out = append(out, Difference{fmt.Sprintf("PCR 7: no event has the digest %x of variable %s", want, name), "other keys than those of the build are enrolled"})
		}
	}
	return out
}

// beforeSeparator returns the events before the separator. Only the firmware can add such events.
// After the separator, a program can add events with any digest.
func beforeSeparator(events []Event) []Event {
	end := slices.IndexFunc(events, func(e Event) bool {
		return e.Digest == sha256.Sum256(make([]byte, 4)) || e.Digest == sha256.Sum256(bytes.Repeat([]byte{0xff}, 4))
	})
	if end < 0 {
		return events
	}
	return events[:end]
}

// joinDigests returns the digests for a message.
func joinDigests(all []Digest) string {
	if len(all) == 0 {
		return "unknown: the boot images name none"
	}
	var out []string
	for _, d := range all {
		out = append(out, fmt.Sprintf("%x", d))
	}
	return strings.Join(out, " or ")
}

// Describe returns the events as readable lines: the PCR, the digest, and the data if they are a
// text with this digest.
func Describe(events []Event) (lines []string) {
	for _, e := range events {
		text := "PCR " + strconv.Itoa(int(e.PCR)) + " " + fmt.Sprintf("%x", e.Digest)
		if isText(e) && !bytes.ContainsFunc(e.Data, func(r rune) bool { return r < ' ' || r > '~' }) {
			text += " " + strconv.Quote(string(e.Data))
		}
		lines = append(lines, text)
	}
	return lines
}
