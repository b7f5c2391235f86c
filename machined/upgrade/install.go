package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/verity"
)

// Place is where the systems of a machine lie.
type Place struct {
	Disk   string // "/dev/vda"
	ESP    string // "/dev/vda1"
	Root   string // the root partition that does not run: "/dev/vda3"
	Label  string // its label: ROOT-A or ROOT-B
	Number int    // its number in the table
	Size   int64  // bytes
}

// Installer writes a version into the other slot.
type Installer struct {
	Running string // the version that runs
	Profile string // the profile of the image that runs
	Trust   bundle.Trust
	Place   Place
	ESP     *ESP
	// Admit asks whether this version may be installed now, before anything is written.
	Admit func(version string) error
	// Report tells of each operation as it begins, and how many of how many bytes it has done.
	Report func(operation string, done, total int64)
}

// Install reads a bundle to its end. It refuses before the first byte is written what can be refused then; when it returns
// nil, the boot loader knows the new version. Anything else leaves the running version the only one.
func (i Installer) Install(ctx context.Context, from io.Reader) error {
	r, err := bundle.Open(from, i.Trust)
	if err != nil {
		return err
	}
	s := r.Statement
	if err := i.fits(s); err != nil {
		return err
	}
	params, err := verity.Parse(s.Root)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if err := i.Admit(s.Version); err != nil {
		return err
	}
	var uki []byte
	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"forget the version in slot " + i.Place.Label, func() error { return i.ESP.Forget(i.Running) }},
		{fmt.Sprintf("write version %s to %s (%s)", s.Version, i.Place.Label, i.Place.Root), func() error {
			return writeRoot(i.Place.Root, func(to io.Writer) error {
				return r.Root(&counter{to: to, done: func(n int64) { i.Report("", n, s.RootImage.Size) }})
			})
		}},
		{"read it back", func() error { return verity.Verify(i.Place.Root, params) }},
		{"name the partition after its content", func() error { return i.name(params) }},
		{"read the boot image", func() (err error) { uki, err = r.UKI(); return err }},
		{fmt.Sprintf("enter version %s, to be tried %d times", s.Version, slot.Tries), func() error {
			return i.ESP.Enter(slot.Entry{Version: s.Version, Trial: true, Left: slot.Tries}, uki)
		}},
	} {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("upgrade: stopped before it could %s: %w", op.name, err)
		}
		i.Report(op.name, 0, 0)
		if err := op.do(); err != nil {
			return fmt.Errorf("upgrade: cannot %s: %w", op.name, err)
		}
	}
	return nil
}

// fits refuses what this machine cannot take, with the reason.
func (i Installer) fits(s bundle.Statement) error {
	if s.Profile != i.Profile {
		return fmt.Errorf("upgrade refused, nothing was written: the bundle is for profile %s, this machine runs %s", s.Profile, i.Profile)
	}
	if s.MinimumVersion != "" && slot.Compare(i.Running, s.MinimumVersion) < 0 {
		return fmt.Errorf("upgrade refused, nothing was written: version %s can follow %s or newer, this machine runs %s; upgrade to that one first",
			s.Version, s.MinimumVersion, i.Running)
	}
	if s.RootImage.Size > i.Place.Size {
		return fmt.Errorf("upgrade refused, nothing was written: the root image has %d MiB, slot %s only %d MiB", s.RootImage.Size>>20, i.Place.Label, i.Place.Size>>20)
	}
	room, err := i.ESP.Room(i.Running)
	if err != nil {
		return err
	}
	if need := s.UKI.Size + espReserve; need > room {
		return fmt.Errorf("upgrade refused, nothing was written: the boot image needs %d MiB of the ESP, %d MiB are free", need>>20, room>>20)
	}
	return nil
}

// espReserve is what FAT needs for its own tables, generously, in bytes.
const espReserve = 1 << 20

// counter tells how much was written.
type counter struct {
	to   io.Writer
	n    int64
	last time.Time
	done func(int64)
}

// tellEvery is how often progress is told.
const tellEvery = 500 * time.Millisecond

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	if now := time.Now(); now.Sub(c.last) > tellEvery {
		c.last = now
		c.done(c.n)
	}
	return n, err
}

// ErrNoSlots means that the machine does not run from a disk with two slots.
var ErrNoSlots = errors.New("this machine does not run from a disk with two slots; install it first")
