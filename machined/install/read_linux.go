package install

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/cmdline"
	"github.com/orlop-os/orlop/pkg/esp"
	"github.com/orlop-os/orlop/pkg/layout"
	"github.com/orlop-os/orlop/pkg/parttable"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/release"
	"github.com/orlop-os/orlop/pkg/verity"
)

// ReadSystem looks at what there is to install: the system that runs. The boot image for a disk must know the same root, which the
// kernel's command line names.
func ReadSystem(r release.Release) (System, error) {
	s := System{Version: r.Version, Sizes: r.Disk}
	line, err := os.ReadFile(cmdline.File)
	if err != nil {
		return System{}, fmt.Errorf("kernel command line: cannot read: %w", err)
	}
	if s.Root, err = verity.FromCommandLine(string(line)); err != nil {
		return System{}, err
	}
	uki, err := os.ReadFile(paths.SystemUKI)
	if err != nil {
		return System{}, fmt.Errorf("boot image: cannot read: %w", err)
	}
	if !bytes.Contains(uki, []byte(verity.Argument+"="+s.Root.String())) {
		return System{}, fmt.Errorf("%s: the boot image is for another root than the one that runs: the medium was built wrong", paths.SystemUKI)
	}
	s.UKISize = int64(len(uki))
	root, err := os.Stat(paths.SystemRoot)
	if err != nil {
		return System{}, fmt.Errorf("root: cannot read: %w", err)
	}
	s.RootSize = root.Size()
	return s, nil
}

// Bootable looks for the boot loader on a disk of which Unsure is true. A file system that cannot be mounted is none that the firmware
// would start from: mkfs.fat may have been cut short.
func Bootable(d Disk, modules func(names ...string) error) bool {
	i := slices.IndexFunc(d.Partitions, func(p Partition) bool { return p.Label == layout.ESP && strings.HasPrefix(p.Content, "vfat") })
	if i < 0 {
		return false
	}
	device := parttable.PartitionPath(d.Path, d.Partitions[i].Number)
	boot := &esp.Partition{Device: func() (string, error) { return device, nil }, Target: lookMount, Modules: modules}
	there, err := boot.Bootable()
	return there && err == nil
}

// lookMount is where an ESP is mounted while it is looked at: not where one is written to.
const lookMount = paths.Run + "/look"
