package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/siderolabs/go-blockdevice/v2/partitioning/gpt"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/vm/writelog"
)

// examination is the result of reading the partition table and the ESP of disks without a machine.
// The firmware and the boot loader read the same data.
type examination struct {
	Disks int      `json:"disks"`
	Wrong []string `json:"wrong"`
}

// examine looks at each write to the ESP or outside all partitions. It reads disks that the
// recorded machine could have if the power failed directly after this write. The parameter each is
// the number of disks per write.
func (s *soak) examine(ctx context.Context, seed uint64, each int) (e examination, err error) {
	e.Wrong = []string{}
	whole, err := s.bootImages()
	if err != nil {
		return e, err
	}
	esp, luck := s.replay.ESP, draws(seed, -1) // -1 is not the number of a cut
	for n := 1; n <= len(s.replay.log.Ops); n++ {
		op := s.replay.log.Ops[n-1]
		behind := s.replay.Data.Sector + s.replay.Data.Sectors
		if op.Sectors == 0 || op.Sector >= esp.Sector+esp.Sectors && op.Sector+op.Sectors <= behind {
			continue
		}
		for range each {
			flushed, pieces := s.replay.log.Survivors(n, luck)
			if err := s.replay.set(ctx, flushed, pieces); err != nil {
				return e, err
			}
			found, complaint, err := s.entries(ctx)
			if err != nil {
				return e, err
			}
			wrong := s.replay.lacks(op.End, found, whole)
			if err := s.table(); err != nil {
				wrong = append(wrong, err.Error())
			}
			if complaint != "" {
				wrong = append(wrong, complaint)
			}
			e.Disks++
			for _, wrong := range wrong {
				e.Wrong = append(e.Wrong, fmt.Sprintf("after operation %d: %s", n, wrong))
			}
		}
	}
	return e, nil
}

// table checks that a copy of the partition table is valid and has all partitions of the system.
func (s *soak) table() error {
	f, err := os.Open(s.replay.file())
	if err != nil {
		return err
	}
	defer f.Close()
	device, err := gpt.DeviceFromFile(f)
	if err != nil {
		return err
	}
	table, err := gpt.Read(device)
	if err != nil {
		return fmt.Errorf("partition table: %w", err)
	}
	for i, p := range layout.System(layout.Sizes{}) {
		if all := table.Partitions(); i >= len(all) || all[i] == nil || all[i].Name != p.Label {
			return fmt.Errorf("partition table: there is no %s", p.Label)
		}
	}
	return nil
}

// lacks returns the problems of the boot entries of a disk after a cut at this length of the log.
// The parameter found has the hash of each boot entry on the disk, and whole has the hash of the
// boot image of each version.
func (r *recording) lacks(length int64, found map[string][sha256.Size]byte, whole map[string][sha256.Size]byte) (wrong []string) {
	var all []slot.Entry
	for name, sum := range found {
		entry, _ := slot.ParseEntry(name)
		all = append(all, entry)
		if sum != whole[entry.Version] {
			wrong = append(wrong, fmt.Sprintf("%s is incomplete", name))
		}
	}
	if _, there := found[slot.Entry{Version: r.Old}.Name()]; !there {
		wrong = append(wrong, fmt.Sprintf("the entry of version %s is missing", r.Old))
	}
	first, _ := slot.First(all)
	for _, s := range r.Spans {
		if s.Class == "commit" && length > s.From && length <= s.To && first.Version != r.New {
			wrong = append(wrong, fmt.Sprintf("version %s is being committed after its trial, but the loader would start %s of %v", r.New, first.Version, all))
		}
	}
	return wrong
}

// bootImages returns the hash of the boot image of each version. The key is the version.
func (s *soak) bootImages() (map[string][sha256.Size]byte, error) {
	sums := map[string][sha256.Size]byte{}
	for _, dir := range []string{s.image, filepath.Join(s.versions, "next"), filepath.Join(s.versions, "broken")} {
		version, err := versionOf(dir)
		if err != nil {
			return nil, err
		}
		text, err := os.ReadFile(filepath.Join(dir, "orlop.efi"))
		if err != nil {
			return nil, fmt.Errorf("image: %w; `make versions` builds it", err)
		}
		sums[version] = sha256.Sum256(text)
	}
	return sums, nil
}

// entries returns the hash of each boot entry in the ESP, by file name, and the error messages of
// mtools.
func (s *soak) entries(ctx context.Context) (found map[string][sha256.Size]byte, complaint string, err error) {
	disk := fmt.Sprintf("%s@@%d", s.replay.file(), s.replay.ESP.Sector*writelog.SectorSize)
	mtools := func(name string, program ...string) ([]byte, error) {
		var out, said bytes.Buffer
		cmd := exec.CommandContext(ctx, program[0], append(program[1:], "-i", disk, name)...)
		cmd.Stdout, cmd.Stderr = &out, &said
		err := cmd.Run()
		complaint += said.String()
		if err != nil && said.Len() > 0 && ctx.Err() == nil {
			err = nil // the messages contain the reason
		}
		return out.Bytes(), err
	}
	list, err := mtools("::"+slot.EntriesDir, "mdir", "-b")
	if err != nil {
		return nil, "", fmt.Errorf("mdir: %w", err)
	}
	found = map[string][sha256.Size]byte{}
	for _, file := range strings.Fields(string(list)) {
		if _, ours := slot.ParseEntry(filepath.Base(file)); !ours {
			continue // the file is not yet complete, so it does not have the name of an entry
		}
		text, err := mtools(file, "mtype")
		if err != nil {
			return nil, "", fmt.Errorf("mtype: %w", err)
		}
		found[filepath.Base(file)] = sha256.Sum256(text)
	}
	return found, complaint, nil
}
