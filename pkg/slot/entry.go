package slot

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EntriesDir is where the boot loader looks for unified kernel images, in the ESP (Boot Loader
// Specification, type 2).
const EntriesDir = "EFI/Linux"

// Tries is how often a new version is started before the machine goes back to the old one.
const Tries = 3

// Entry is one system that the boot loader knows: a unified kernel image (UKI) on the ESP. What is
// known of it stands in its file's name (systemd's Automatic Boot Assessment):
//
//	orlop-1.2.0.efi      good: it was committed, or came with the disk
//	orlop-1.2.0+3-0.efi  on trial: three tries left, none done; the loader counts at every start, before it starts it
//	orlop-1.2.0+0-3.efi  failed: no try left; the loader starts it only when there is nothing else
type Entry struct {
	Version string
	Trial   bool // it has a counter
	Left    int  // tries that are left
	Done    int  // tries that were made
}

var entryName = regexp.MustCompile(`^orlop-([0-9][0-9A-Za-z.~-]*?)(?:\+(\d+)(?:-(\d+))?)?\.efi$`)

// ParseEntry reads a file's name. What is not named so is not ours.
func ParseEntry(name string) (Entry, bool) {
	m := entryName.FindStringSubmatch(name)
	if m == nil {
		return Entry{}, false
	}
	e := Entry{Version: m[1], Trial: m[2] != ""}
	if !e.Trial {
		return e, true
	}
	var err error
	if e.Left, err = strconv.Atoi(m[2]); err != nil {
		return Entry{}, false
	}
	if m[3] != "" {
		if e.Done, err = strconv.Atoi(m[3]); err != nil {
			return Entry{}, false
		}
	}
	return e, true
}

// Name is the entry's file name.
func (e Entry) Name() string {
	if !e.Trial {
		return "orlop-" + e.Version + ".efi"
	}
	return fmt.Sprintf("orlop-%s+%d-%d.efi", e.Version, e.Left, e.Done)
}

// Failed tells that no try is left.
func (e Entry) Failed() bool { return e.Trial && e.Left == 0 }

// First is the entry that the loader would start: the newest that has not failed, else the newest
// that has (systemd 252, src/boot/efi/boot.c, boot_entry_compare). It is false if there is none.
func First(all []Entry) (Entry, bool) {
	if len(all) == 0 {
		return Entry{}, false
	}
	return slices.MinFunc(all, func(a, b Entry) int {
		if a.Failed() != b.Failed() {
			if a.Failed() {
				return 1
			}
			return -1
		}
		return -Compare(a.Version, b.Version)
	}), true
}

// Compare orders versions as the loader does, step by step (UAPI.10 Version Format Specification;
// systemd 252, src/fundamental/string-util-fundamental.c, strverscmp_improved): numbers are
// compared as numbers, words as words, and what stands behind ~ is older than nothing. Each turn
// takes at most one of each mark, and looks for the end behind ~ only.
func Compare(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, separator), strings.TrimLeftFunc(b, separator)
		var order int
		if a, b, order = mark(a, b, "~"); order != 0 {
			return order
		}
		if a == "" || b == "" {
			return cmp.Compare(min(len(a), 1), min(len(b), 1)) // whichever goes on is newer
		}
		for _, m := range []string{"-", "^", "."} {
			if a, b, order = mark(a, b, m); order != 0 {
				return order
			}
		}
		if a, b, order = segment(a, b); order != 0 {
			return order
		}
	}
}

// mark takes a mark from the front of both. The one of two versions that alone has it is older.
func mark(a, b, m string) (restA, restB string, order int) {
	restA, inA := strings.CutPrefix(a, m)
	restB, inB := strings.CutPrefix(b, m)
	switch {
	case inA == inB:
		return restA, restB, 0
	case inA:
		return a, b, -1
	}
	return a, b, 1
}

// segment takes a number from the front of both, or else a word, and compares the two. No number is
// older than a number.
func segment(a, b string) (restA, restB string, order int) {
	an, restA := cut(a, digit)
	bn, restB := cut(b, digit)
	if an == "" && bn == "" {
		aw, restA := cut(a, letter)
		bw, restB := cut(b, letter)
		return restA, restB, cmp.Compare(aw, bw)
	}
	if an == "" || bn == "" {
		return restA, restB, cmp.Compare(len(an), len(bn))
	}
	an, bn = strings.TrimLeft(an, "0"), strings.TrimLeft(bn, "0")
	return restA, restB, cmp.Or(cmp.Compare(len(an), len(bn)), cmp.Compare(an, bn))
}

func digit(r rune) bool { return r >= '0' && r <= '9' }

func letter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// separator is what the specification skips.
func separator(r rune) bool { return !digit(r) && !letter(r) && !strings.ContainsRune("~-.^", r) }

func cut(s string, of func(rune) bool) (head, rest string) {
	i := strings.IndexFunc(s, func(r rune) bool { return !of(r) })
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}
