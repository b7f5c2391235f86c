package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/vm"
)

// medium returns a disk with a FAT file system that contains one file of the story. It is like a
// USB stick that a user has prepared.
func (s *story) medium(ts *testscript.TestScript, machine, label, name, file string) vm.Disk {
	image, content := filepath.Join(s.dir, machine+"-"+name+".img"), filepath.Join(s.dir, machine+"-"+name)
	ts.Check(os.WriteFile(content, []byte(ts.ReadFile(file)), 0o600))
	for _, argv := range [][]string{{"mkfs.fat", "-C", "-n", label, image, "4096"}, {"mcopy", "-i", image, content, "::" + name}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			ts.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	return vm.Disk{Name: "config", Image: image, SizeMiB: 4}
}

// otherLoader returns a medium with a boot loader of Debian that boots netboot.efi. iPXE loads the
// file from the network, from the server that DHCP names. GRUB loads the file from the medium. Both
// pass their own kernel parameters.
func (s *story) otherLoader(ts *testscript.TestScript, machine, dir, loader string) vm.Disk {
	const script = "chainloader /netboot.efi orlop.root=none quiet\nboot\n"
	image, config := filepath.Join(s.dir, machine+"-loader.img"), filepath.Join(s.dir, machine+"-grub.cfg")
	ts.Check(os.WriteFile(config, []byte(script), 0o600))
	boot := filepath.Join(dir, "netboot.efi")
	commands := [][]string{{"mkfs.fat", "-C", "-F", "32", image, "262144"}, {"mmd", "-i", image, "::EFI", "::EFI/BOOT", "::EFI/debian"}}
	switch loader {
	case "ipxe":
		commands = append(commands, []string{"mcopy", "-i", image, "/usr/lib/ipxe/ipxe.efi", "::EFI/BOOT/BOOTX64.EFI"})
		ts.Check(s.network.ServeBoot(boot))
	case "grub":
		commands = append(commands, []string{"mcopy", "-i", image, "/usr/lib/grub/x86_64-efi/monolithic/grubx64.efi", "::EFI/BOOT/BOOTX64.EFI"},
			[]string{"mcopy", "-i", image, config, "::EFI/debian/grub.cfg"}, []string{"mcopy", "-i", image, boot, "::netboot.efi"})
	default:
		ts.Fatalf("machine: there is no loader %q", loader)
	}
	for _, argv := range commands {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			ts.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	return vm.Disk{Name: "loader", Image: image, SizeMiB: 256}
}

// disc returns a CD image with a configuration as user-data. Hypervisors add the same kind of
// image.
func (s *story) disc(ts *testscript.TestScript, machine, file string) vm.Disk {
	dir, image := filepath.Join(s.dir, machine+"-disc"), filepath.Join(s.dir, machine+"-disc.iso")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(os.WriteFile(filepath.Join(dir, "user-data"), []byte(ts.ReadFile(file)), 0o600))
	ts.Check(os.WriteFile(filepath.Join(dir, "meta-data"), nil, 0o600))
	argv := []string{"xorriso", "-as", "mkisofs", "-iso-level", "4", "-V", "cidata", "-o", image, dir}
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		ts.Fatalf("%v: %v: %s", argv, err, out)
	}
	return vm.Disk{Name: "config", Image: image, SizeMiB: 4}
}

// photos returns a disk with a user's ext4 file system.
func (s *story) photos(ts *testscript.TestScript, machine, mib string) vm.Disk {
	image := filepath.Join(s.dir, machine+"-photos.img")
	size, err := strconv.ParseInt(mib, 10, 64)
	ts.Check(err)
	if out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-L", "photos", image, mib+"M").CombinedOutput(); err != nil {
		ts.Fatalf("mke2fs: %v: %s", err, out)
	}
	return vm.Disk{Name: "photos", Image: image, SizeMiB: size}
}

// member returns a disk that belongs to a Linux RAID with metadata 1.0. Only the last sectors of
// the disk show this.
func (s *story) member(ts *testscript.TestScript, machine, mib string) vm.Disk {
	size, err := strconv.ParseInt(mib, 10, 64)
	ts.Check(err)
	f, err := os.Create(filepath.Join(s.dir, machine+"-member.img"))
	ts.Check(err)
	defer f.Close()
	ts.Check(f.Truncate(size << 20))
	// magic number and version of the superblock, from include/uapi/linux/raid/md_p.h
	_, err = f.WriteAt([]byte("\xfc\x4e\x2b\xa9\x01"), size<<20-8<<10)
	ts.Check(err)
	return vm.Disk{Name: "member", Image: f.Name(), SizeMiB: size}
}

// cutInstallVerb starts an installation, and cuts the power as soon as the given operation begins.
// The topic install reports the names of the operations (machined/install).
func (s *story) cutInstallVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "cut-install NAME DOCUMENTS OPERATION")
	c := s.client(ts)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	states, err := c.Machine.Watch(ctx, &api.GetRequest{Topic: "install"})
	ts.Check(err)
	_, err = c.Config.Apply(ctx, &api.ApplyRequest{Documents: []byte(ts.ReadFile(args[1])), Filename: args[1]})
	ts.Check(err)
	for begun, doing := time.Now(), ""; ; {
		state, err := states.Recv()
		if err != nil {
			ts.Fatalf("cut-install: operation %q did not begin, the last was %q: %v", args[2], doing, err)
		}
		doing = state.Value.GetStructValue().GetFields()["operation"].GetStringValue()
		if strings.HasPrefix(doing, args[2]) {
			s.machine(ts, args[0]).PowerCut()
			s.note("power of %s is cut after %.1fs, while it does: %s", args[0], time.Since(begun).Seconds(), doing)
			return
		}
	}
}
