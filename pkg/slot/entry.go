package slot

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EntriesDir is the directory in the ESP for unified kernel images (Boot Loader Specification, type
// 2).
const EntriesDir = "EFI/Linux"

// Tries is the number of boots that a new version gets before the machine rolls back.
const Tries = 3

// Entry is a boot entry: a unified kernel image (UKI) in the ESP. Its file name has its state, in
// the format of systemd's Automatic Boot Assessment:
//
//	orlop-1.2.0.efi      good: it was committed, or the installation wrote it
//	orlop-1.2.0+3-0.efi  on trial: three tries left, none used; before each boot of the entry, the
//	                     boot loader counts a try
//	orlop-1.2.0+0-3.efi  failed: no try left; the boot loader boots it only if no other entry exists
type Entry struct {
	Version string
	Trial   bool // whether the name has a try counter
	Left    int  // number of remaining tries
	Tries   int  // number of used tries
}

var entryName = regexp.MustCompile(`^orlop-([0-9][0-9A-Za-z.~-]*?)(?:\+(\d+)(?:-(\d+))?)?\.efi$`)

// ParseEntry parses a file name. It returns false if the name is not the name of an Entry.
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

// Failed reports whether the entry has a try counter and no remaining try.
func (e Entry) Failed() bool { return e.Trial && e.Left == 0 }

// First returns the entry that the boot loader would boot: the newest entry that has not failed, or
// else the newest failed entry (systemd 257, src/boot/boot.c, boot_entry_compare). It returns false
// if there is no entry.
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

// Compare orders two versions by the algorithm of the boot loader. It returns a negative number if
// a is older than b. The algorithm is that of the UAPI.10 Version Format Specification and of
// systemd 257 (src/fundamental/string-util-fundamental.c, strverscmp_improved). It compares numbers
// as numbers and words as words. A version with a ~ suffix is older than the version without it.
// Each iteration skips each separator at most once, and checks for the end of the text only after
// ~, as systemd does.
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

// mark removes the separator m from the front of both versions. If only one version begins with it,
// that version is older, and order is not 0.
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

// segment removes a number from the front of both versions, or a word if neither begins with a
// number, and compares both. A version without the number is older.
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

// separator reports whether the specification ignores a character between numbers and words.
func separator(r rune) bool { return !digit(r) && !letter(r) && !strings.ContainsRune("~-.^", r) }

// cut splits s after the leading characters for which the function of returns true.
func cut(s string, of func(rune) bool) (head, rest string) {
	i := strings.IndexFunc(s, func(r rune) bool { return !of(r) })
	if i < 0 {
		return s, ""
	}
	return s[:i], s[i:]
}
