package slot

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Folder is where the boot loader looks for unified kernel images, in the ESP (Boot Loader Specification, type 2).
const Folder = "EFI/Linux"

// Tries is how often a new version is started before the machine goes back to the old one.
const Tries = 3

// Entry is one system that the boot loader knows: a unified kernel image (UKI) on the ESP. What is known of it stands in
// its file's name (systemd's Automatic Boot Assessment):
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

// First is the entry that the loader would start: the newest that has not failed, else the newest that has
// (systemd 252, src/boot/efi/boot.c, boot_entry_compare). It is false if there is none.
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

// Compare orders versions as the loader does (UAPI.10 Version Format Specification), for the characters that entryName
// admits: numbers are compared as numbers, words as words, and what stands behind ~ is older than nothing.
func Compare(a, b string) int {
	for a != "" || b != "" {
		a, b = strings.TrimLeftFunc(a, separator), strings.TrimLeftFunc(b, separator)
		if at, bt := strings.HasPrefix(a, "~"), strings.HasPrefix(b, "~"); at || bt {
			if at != bt {
				return older(at)
			}
			a, b = a[1:], b[1:]
			continue
		}
		if a == "" || b == "" {
			return cmp.Compare(len(a), len(b))
		}
		if ad, bd := strings.HasPrefix(a, "-"), strings.HasPrefix(b, "-"); ad || bd {
			if ad != bd {
				return older(ad)
			}
			a, b = a[1:], b[1:]
			continue
		}
		if ad, bd := strings.HasPrefix(a, "."), strings.HasPrefix(b, "."); ad || bd {
			if ad != bd {
				return older(ad)
			}
			a, b = a[1:], b[1:]
			continue
		}
		if digit(rune(a[0])) || digit(rune(b[0])) {
			an, ar := cut(a, digit)
			bn, br := cut(b, digit)
			an, bn = strings.TrimLeft(an, "0"), strings.TrimLeft(bn, "0")
			if c := cmp.Or(cmp.Compare(len(an), len(bn)), cmp.Compare(an, bn)); c != 0 {
				return c
			}
			a, b = ar, br
			continue
		}
		aw, ar := cut(a, letter)
		bw, br := cut(b, letter)
		if c := cmp.Compare(aw, bw); c != 0 {
			return c
		}
		a, b = ar, br
	}
	return 0
}

// older is the order of two versions of which one, or else the other, has what makes it older.
func older(first bool) int {
	if first {
		return -1
	}
	return 1
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
