package esp

import (
	"bytes"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/slot"
)

// fatImage creates an image of a FAT32 file system with two files in the directory of entries. The
// number of deleted files between them is removed; ten more deleted files are after the second
// file. run runs a program, and fails the test if the program fails.
func fatImage(t *testing.T, removed int) (image string, run func(argv ...string) string) {
	t.Helper()
	dir := t.TempDir()
	image = filepath.Join(dir, "esp.img")
	run = func(argv ...string) string {
		t.Helper()
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s (the packages that testing needs: make packages)", strings.Join(argv, " "), err, out)
		}
		return string(out)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, bytes.Repeat([]byte("boot image "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	run("truncate", "-s", "36M", image) // a little more than the minimum of FAT32, 65525 clusters
	run("mkfs.fat", "-F32", "-s1", image)
	run("mmd", "-i", image, "::EFI", "::EFI/Linux")
	copyTo := func(name string) { t.Helper(); run("mcopy", "-i", image, file, "::EFI/Linux/"+name) }
	copyTo("orlop-1.0.0.efi")
	for i := range removed {
		copyTo(fmt.Sprintf("orlop-2.0.%d+3-0.efi", i))
	}
	copyTo("orlop-2.0.0.efi")
	for i := range 10 {
		copyTo(fmt.Sprintf("orlop-3.0.%d+3-0.efi", i))
	}
	run("mdel", "-i", image, "::EFI/Linux/orlop-*+3-0.efi")
	return image, run
}

// TestTrim checks that trim retains the two names and their files, and that fsck.fat finds no
// error, also if the power is cut after any write of trim. After trim, each directory slot behind
// the last name is marked as unused, and a second trim writes nothing.
func TestTrim(t *testing.T) {
	for _, removed := range []int{0, 3, 20} {
		image, run := fatImage(t, removed)
		before, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		recorded := &writes{content: bytes.Clone(before)}
		if err := trim(recorded, slot.EntriesDir); err != nil {
			t.Fatal(err)
		}
		if len(recorded.all) == 0 {
			t.Error("trim wrote no sector")
		}
		for done, state := range recorded.cuts(before) {
			if err := os.WriteFile(image, state, 0o600); err != nil {
				t.Fatal(err)
			}
			run("fsck.fat", "-n", image)
			list := strings.Fields(run("mdir", "-b", "-i", image, "::EFI/Linux"))
			if want := "::/EFI/Linux/orlop-1.0.0.efi ::/EFI/Linux/orlop-2.0.0.efi"; strings.Join(list, " ") != want {
				t.Errorf("%d removed, after %d writes: %q", removed, done, list)
			}
			for _, name := range list {
				if text := run("mtype", "-i", image, name); text != strings.Repeat("boot image ", 1000) {
					t.Errorf("%d removed, after %d writes: %s has changed", removed, done, name)
				}
			}
		}
		if bytes.Contains(recorded.content, []byte("RLOP-3")) {
			t.Errorf("%d removed: a slot after the last name is not marked as unused", removed)
		}
		again := &writes{content: recorded.content}
		if err := trim(again, slot.EntriesDir); err != nil || len(again.all) > 0 {
			t.Errorf("%d removed: the second trim made %d writes, %v", removed, len(again.all), err)
		}
	}
}

func TestTrimWhatIsNotOurs(t *testing.T) {
	image, _ := fatImage(t, 0)
	content, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	for name, disk := range map[string][]byte{"no file system": make([]byte, 1<<20), "no directory": bytes.ReplaceAll(content, []byte("LINUX   "), []byte("WINDOWS "))} {
		w := &writes{content: bytes.Clone(disk)}
		if err := trim(w, slot.EntriesDir); err == nil || len(w.all) > 0 {
			t.Errorf("%s: %v, %d writes", name, err, len(w.all))
		}
	}
}

// writes is a disk in memory that records all writes to it.
type writes struct {
	content []byte
	all     []written
}

type written struct {
	at   int64
	data []byte
}

// cuts yields the disk after a power cut: after none of the writes, after the first write, and so
// on.
func (w *writes) cuts(before []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		state := bytes.Clone(before)
		for done := range len(w.all) + 1 {
			if done > 0 {
				last := w.all[done-1]
				copy(state[last.at:], last.data)
			}
			if !yield(done, state) {
				return
			}
		}
	}
}

func (w *writes) ReadAt(p []byte, at int64) (int, error) { return copy(p, w.content[at:]), nil }
func (w *writes) WriteAt(p []byte, at int64) (int, error) {
	w.all = append(w.all, written{at, bytes.Clone(p)})
	return copy(w.content[at:], p), nil
}

// TestRemoveDuplicates gives a file two names, as an interrupted rename does, at several places in
// the directory. removeDuplicates must retain the new name, even if the power is cut after any
// write. The file must be complete and share no cluster, and files with a single name must not
// change.
func TestRemoveDuplicates(t *testing.T) {
	for i, c := range []struct{ from, to string }{
		{"9.0.0.new", "orlop-9.0.0+3-0.efi"}, {"orlop-9.0.0+2-1.efi", "orlop-9.0.0.efi"}, {"orlop-9.0.0+3-0.efi", "orlop-9.0.0+2-1.efi"},
		{"orlop-9.0.0.efi", "orlop-9.0.0+0-1.efi"}, {"orlop-9.0.0+2-1.efi", "orlop-9.0.0+0-1.efi"},
	} {
		t.Run(c.from+" to "+c.to, func(t *testing.T) {
			image, run := fatImage(t, i%2) // a deleted file moves the slots of the next names
			empty := filepath.Join(t.TempDir(), "empty")
			if err := os.WriteFile(empty, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			first, second := c.from, c.to
			if i%2 == 1 {
				first, second = second, first
			}
			run("mcopy", "-i", image, filepath.Join(filepath.Dir(image), "file"), "::EFI/Linux/"+first)
			run("mcopy", "-i", image, empty, "::EFI/Linux/"+second)
			content, err := os.ReadFile(image)
			if err != nil {
				t.Fatal(err)
			}
			d, err := openDirectory(&writes{content: content}, slot.EntriesDir)
			if err != nil {
				t.Fatal(err)
			}
			var firstSlot, secondSlot []byte // directory slots of the two short names
			for _, f := range d.files() {
				at := f.slots[len(f.slots)-1]
				place := d.places[int64(at)/d.cluster] + int64(at)%d.cluster
				switch f.text {
				case first:
					firstSlot = content[place : place+slotSize]
				case second:
					secondSlot = content[place : place+slotSize]
				}
			}
			if firstSlot == nil || secondSlot == nil {
				t.Fatalf("%s or %s is missing in the directory", first, second)
			}
			copy(secondSlot[20:22], firstSlot[20:22]) // first cluster and size
			copy(secondSlot[26:32], firstSlot[26:32])
			recorded := &writes{content: bytes.Clone(content)}
			if err := removeDuplicates(recorded, slot.EntriesDir); err != nil || len(recorded.all) == 0 {
				t.Fatalf("%s and %s: %d writes, %v", first, second, len(recorded.all), err)
			}
			for done, state := range recorded.cuts(content) {
				if err := os.WriteFile(image, state, 0o600); err != nil {
					t.Fatal(err)
				}
				for _, name := range []string{c.to, "orlop-2.0.0.efi"} {
					if text := run("mtype", "-i", image, "::EFI/Linux/"+name); text != strings.Repeat("boot image ", 1000) {
						t.Errorf("%s and %s, after %d writes: %s has changed", first, second, done, name)
					}
				}
			}
			run("fsck.fat", "-n", image) // fails if two files share a cluster
			if list := run("mdir", "-b", "-i", image, "::EFI/Linux"); strings.Count(list, "9.0.0") != 1 || strings.Count(list, "\n") != 3 {
				t.Errorf("%s and %s: the remaining names are %q", first, second, list)
			}
			again := &writes{content: recorded.content}
			if err := removeDuplicates(again, slot.EntriesDir); err != nil || len(again.all) > 0 {
				t.Errorf("%s and %s: the second call made %d writes, %v", first, second, len(again.all), err)
			}
		})
	}
}
