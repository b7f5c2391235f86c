package slot

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EntriesDir is the directory of unified kernel images in the ESP (Boot Loader Specification, type
// 2).
const EntriesDir = "EFI/Linux"

// Tries is the number of boots of a new version before the machine rolls back.
const Tries = 3

// Entry is a boot entry: a unified kernel image (UKI) in the ESP. Its file name contains its state
// (systemd's Automatic Boot Assessment):
//
//	orlop-1.2.0.efi      good: it was committed, or came with the disk
//	orlop-1.2.0+3-0.efi  on trial: three tries left, none done; the loader counts before each boot
//	orlop-1.2.0+0-3.efi  failed: no try left; the loader boots it only without another entry
type Entry struct {
	Version string
	Trial   bool // has a counter
	Left    int  // remaining tries
	Tries   int  // used tries
}

var entryName = regexp.MustCompile(`^orlop-([0-9][0-9A-Za-z.~-]*?)(?:\+(\d+)(?:-(\d+))?)?\.efi$`)

// ParseEntry parses a file name. It reports false for files of other systems.
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
		if e.Tries, err = strconv.Atoi(m[3]); err != nil {
			return Entry{}, false
		}
	}
	return e, true
}

// Name returns the file name of the entry.
func (e Entry) Name() string {
	if !e.Trial {
		return "orlop-" + e.Version + ".efi"
	}
	return fmt.Sprintf("orlop-%s+%d-%d.efi", e.Version, e.Left, e.Tries)
}

// Failed reports whether no try is left.
func (e Entry) Failed() bool { return e.Trial && e.Left == 0 }

// First returns the entry that the loader would boot: the newest entry that has not failed, else
// the newest failed entry (systemd 257, src/boot/boot.c, boot_entry_compare). It returns false
// without entries.
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

// Compare orders versions by the algorithm of the loader (UAPI.10 Version Format Specification;
// systemd 257, src/fundamental/string-util-fundamental.c, strverscmp_improved): numbers compare as
// numbers, words as words, and a version with a ~ suffix is older than the version without it. Each
// iteration skips at most one of each separator, and checks for the end only after ~.
func Compare(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, separator), strings.TrimLeftFunc(b, separator)
		var order int
		if a, b, order = mark(a, b, "~"); order != 0 {
			return order
		}
		if a == "" || b == "" {
			return cmp.Compare(min(len(a), 1), min(len(b), 1)) // the longer version is newer
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

// mark removes a separator from the front of both versions. If only one version has it, that
// version is older.
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

// segment removes a number, or else a word, from the front of both versions, and compares them. A
// missing number is older than a number.
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

// separator reports whether the specification ignores a character.
func separator(r rune) bool { return !digit(r) && !letter(r) && !strings.ContainsRune("~-.^", r) }

func cut(s string, of func(rune) bool) (head, rest string) {
	i := strings.IndexFunc(s, func(r rune) bool { return !of(r) })
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}
