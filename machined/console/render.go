package console

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Status is the content of a console. It is a value: set a new Status for each change.
type Status struct {
	Name       string   // name of the machine; empty without a configuration
	Version    string   // version of the OS
	Kubernetes string   // version with a leading v; empty if Kubernetes does not run
	Slot       string   // "A" or "B"; empty if the system is not installed
	Medium     string   // medium of a system that is not installed: "memory"
	Stage      string   // current stage: "disks", "configuration", "ready", …
	WaitsFor   []string // conditions that the stage waits for, a line each
	Addresses  []string // addresses of the machine, "10.0.2.15/24"
	// address of the machine's API, "10.0.2.15:50000"; empty before the API answers
	Endpoint string
	Identity string // fingerprint of the machine's certificate, "sha256:…"
	// code with which an operator claims an unclaimed machine
	PairingCode string
	Problem     string   // problem that needs the operator, or empty
	Services    []string // "containerd running", a string per service
}

// minWidth is the minimum width of the page; narrower screens truncate it.
const minWidth = 40

// Render returns the page: at most height lines of at most width characters, joined by newlines.
func Render(s Status, width, height int) string {
	width = max(width, minWidth)
	title := title(s)
	name := clean(s.Name)
	if name == "" {
		name = "no configuration yet"
	}
	gap := max(1, width-utf8.RuneCountInString(title)-utf8.RuneCountInString(name))
	lines := []string{title + strings.Repeat(" ", gap) + name, strings.Repeat("-", width)}
	row := func(label string, values ...string) {
		for _, value := range values {
			for _, part := range wrap(clean(value), width-14) {
				lines = append(lines, fmt.Sprintf("  %-11s %s", label, part))
				label = ""
			}
		}
	}
	if s.Problem != "" {
		row("PROBLEM", s.Problem)
		lines = append(lines, "")
	}
	row("Stage", s.Stage)
	row("Waits for", s.WaitsFor...)
	row("Addresses", s.Addresses...)
	if len(s.Addresses) == 0 {
		row("Addresses", "none yet")
	}
	if s.Endpoint != "" {
		row("API", s.Endpoint)
	}
	if s.Identity != "" {
		row("Identity", s.Identity)
	}
	if s.PairingCode != "" {
		row("Pairing", "This machine is unclaimed. Claim it with:", "orlopctl pair ADDRESS", "code "+s.PairingCode)
	}
	if s.Kubernetes != "" {
		row("Kubernetes", s.Kubernetes)
	}
	if len(s.Services) > 0 {
		row("Services", strings.Join(s.Services, ", "))
	}
	lines = append(lines, "", "  This console takes no input. The machine is managed with orlopctl.")
	for i, line := range lines {
		if r := []rune(line); len(r) > width {
			lines[i] = string(r[:width])
		}
	}
	return strings.Join(lines[:min(len(lines), max(height, 1))], "\n")
}

// title is "Orlop OS 1.0.0 (slot A)", or "Orlop OS 1.0.0 (from memory, not installed)".
func title(s Status) string {
	title := strings.TrimSpace("Orlop OS " + s.Version)
	if s.Slot != "" {
		title += " (slot " + s.Slot + ")"
	}
	if s.Medium != "" {
		title += " (from " + s.Medium + ", not installed)"
	}
	return title
}

// Changes returns the lines that a serial console shows after a change of the status. The caller
// adds the prefix "orlop: ".
func Changes(before, after Status) []string {
	var lines []string
	changed := func(old, now, format string) {
		if now != old && now != "" {
			lines = append(lines, clean(fmt.Sprintf(format, now)))
		}
	}
	changed(title(before), title(after), "%s")
	changed(before.Name, after.Name, "machine name %s")
	changed(before.Identity, after.Identity, "machine identity %s")
	changed(before.PairingCode, after.PairingCode, "pairing code %s")
	changed(before.Stage, after.Stage, "stage: %s")
	for _, what := range after.WaitsFor {
		if !slices.Contains(before.WaitsFor, what) || before.Stage != after.Stage {
			lines = append(lines, clean("waits for "+what))
		}
	}
	for _, address := range after.Addresses {
		if !slices.Contains(before.Addresses, address) {
			lines = append(lines, clean("address "+address))
		}
	}
	for _, address := range before.Addresses {
		if !slices.Contains(after.Addresses, address) {
			lines = append(lines, clean("address "+address+" removed"))
		}
	}
	changed(before.Endpoint, after.Endpoint, "API answers on %s")
	for _, service := range after.Services {
		if !slices.Contains(before.Services, service) {
			lines = append(lines, clean("service "+service))
		}
	}
	changed(before.Problem, after.Problem, "PROBLEM: %s")
	if before.Problem != "" && after.Problem == "" {
		lines = append(lines, "problem solved")
	}
	return lines
}

// clean turns a text into a line without control characters: the source of the text may be
// untrusted, and a terminal obeys control characters.
func clean(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
}

// wrap divides a line at blanks into parts of at most width characters; it cuts words that are
// longer.
func wrap(s string, width int) []string {
	var parts []string
	line := ""
	for _, word := range strings.Fields(s) {
		for {
			room := width - utf8.RuneCountInString(line)
			if line != "" {
				room--
			}
			runes := []rune(word)
			if len(runes) <= room {
				line = strings.TrimSpace(line + " " + word)
				break
			}
			if line == "" {
				parts = append(parts, string(runes[:width]))
				word = string(runes[width:])
				continue
			}
			parts, line = append(parts, line), ""
		}
	}
	if line != "" {
		parts = append(parts, line)
	}
	return parts
}
