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

	"github.com/orlop-os/orlop/hack/qemu"
	"github.com/orlop-os/orlop/pkg/api"
)

// medium makes a disk with a FAT file system that carries one file of the story, as somebody would prepare a memory stick.
func (s *story) medium(ts *testscript.TestScript, machine, label, name, file string) qemu.Disk {
	image, content := filepath.Join(s.dir, machine+"-"+name+".img"), filepath.Join(s.dir, machine+"-"+name)
	ts.Check(os.WriteFile(content, []byte(ts.ReadFile(file)), 0o600))
	for _, argv := range [][]string{{"mkfs.fat", "-C", "-n", label, image, "4096"}, {"mcopy", "-i", image, content, "::" + name}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			ts.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	return qemu.Disk{Name: "config", Image: image, SizeMiB: 4}
}

// photos makes a disk that is somebody's.
func (s *story) photos(ts *testscript.TestScript, machine, mib string) qemu.Disk {
	image := filepath.Join(s.dir, machine+"-photos.img")
	size, err := strconv.ParseInt(mib, 10, 64)
	ts.Check(err)
	if out, err := exec.Command("mke2fs", "-q", "-F", "-t", "ext4", "-L", "photos", image, mib+"M").CombinedOutput(); err != nil {
		ts.Fatalf("mke2fs: %v: %s", err, out)
	}
	return qemu.Disk{Name: "photos", Image: image, SizeMiB: size}
}

// cutInstallVerb installs, and cuts the power while the machine does an operation of it (machined/install names them).
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
			ts.Fatalf("cut-install: %q did not come, only %q: %v", args[2], doing, err)
		}
		doing = state.Value.GetStructValue().GetFields()["operation"].GetStringValue()
		if strings.HasPrefix(doing, args[2]) {
			s.machine(ts, args[0]).PowerCut()
			s.note("power of %s is cut after %.1fs, while it does: %s", args[0], time.Since(begun).Seconds(), doing)
			return
		}
	}
}
