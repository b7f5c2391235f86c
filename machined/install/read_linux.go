package install

import (
	"bytes"
	"fmt"
	"os"

	"github.com/orlop-os/orlop/pkg/bootenv"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/verity"
)

// ReadSystem reads the properties of the running system, which is the system to install. The boot
// image for the disk must contain the same root hash as the kernel's command line.
func ReadSystem(r buildinfo.Release) (System, error) {
	s := System{Version: r.Version, Sizes: r.Disk}
	line, err := os.ReadFile(bootenv.CommandLine)
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
		return System{}, fmt.Errorf("%s: the boot image is for another root than the running one: the medium was built wrong", paths.SystemUKI)
	}
	s.UKISize = int64(len(uki))
	root, err := os.Stat(paths.SystemRoot)
	if err != nil {
		return System{}, fmt.Errorf("root: cannot read: %w", err)
	}
	s.RootSize = root.Size()
	return s, nil
}
