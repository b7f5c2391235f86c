package debug

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// pieces is the content of a file that was sent.
type pieces struct {
	text bytes.Buffer
	cut  bool
}

func (s *pieces) Send(r *api.ReadFileResponse) error {
	s.text.Write(r.Chunk)
	s.cut = r.Truncated
	return nil
}

// TestReadFile reads files that every machine has, and checks that other files are rejected.
func TestReadFile(t *testing.T) {
	a, _ := newTools(t)
	for name, want := range map[string]string{"/proc/cpuinfo": "processor", "/proc/net/dev": "Receive", "/proc/mounts": "proc", "/proc/sys/kernel/ostype": "Linux"} {
		s := &pieces{}
		if err := a.ReadFile(t.Context(), name, 0, false, s.Send); err != nil || s.cut || !strings.Contains(s.text.String(), want) {
			t.Errorf("%s: %.100q, %v", name, s.text.String(), err)
		}
	}
	s := &pieces{}
	if err := a.ReadFile(t.Context(), "/proc/sys/kernel/ostype", 2, false, s.Send); err != nil || s.text.String() != "nux\n" {
		t.Errorf("from the third byte on: %q, %v", s.text.String(), err)
	}
	for _, c := range []struct {
		path, role string
		code       codes.Code
		want       string
	}{
		{"/state/config/current.yaml", "admin", codes.InvalidArgument, `/state/config/current.yaml: is not on the allow-list; allowed: /usr, /etc, /sys/block`},
		{"/proc/self/environ", "admin", codes.InvalidArgument, "of /proc buddyinfo"},
		{"/proc/1/root/etc/hostname", "admin", codes.InvalidArgument, "/var/log (role admin)"},
		{"/proc/kcore", "admin", codes.InvalidArgument, ""}, {"/proc/keys", "admin", codes.InvalidArgument, ""}, {"/proc/kmsg", "admin", codes.InvalidArgument, ""},
		{"/proc/kallsyms", "admin", codes.InvalidArgument, ""}, {"/proc/sysrq-trigger", "admin", codes.InvalidArgument, ""},
		{"/sys/kernel/security/lsm", "admin", codes.InvalidArgument, ""}, {"/sys/firmware/efi/efivars/x", "admin", codes.InvalidArgument, ""},
		{"/proc/sys/net/ipv4/tcp_fastopen_key", "admin", codes.InvalidArgument, ""}, {"/proc/sys/net/ipv6/conf/lo/stable_secret", "admin", codes.InvalidArgument, ""},
		{"/dev/mem", "admin", codes.InvalidArgument, ""}, {"/run/orlop/kube/api/ca.key", "admin", codes.InvalidArgument, ""}, {"/var/lib/etcd/member", "admin", codes.InvalidArgument, ""},
		{"/usr/share/orlop/config.yaml", "admin", codes.InvalidArgument, ""},
		{"/sys/bus/pci/devices/0000:00:00.0/config", "admin", codes.InvalidArgument, ""}, {"/sys/class/nvme/nvme0/dhchap_secret", "admin", codes.InvalidArgument, ""},
		{"/var/log/pods/x", "operator", codes.PermissionDenied, "/var/log/pods/x: it needs the role orlop:admin"},
		{"/var/log/no-such-file", "admin", codes.NotFound, "is not there"},
		{"/proc/sys/kernel", "reader", codes.FailedPrecondition, "it is a directory"},
	} {
		s := &pieces{}
		err := a.ReadFile(t.Context(), c.path, 0, c.role == "admin", s.Send)
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.want) || s.text.Len() > 0 {
			t.Errorf("%s: %v, %d bytes; want %v, %q", c.path, err, s.text.Len(), c.code, c.want)
		}
		answer, err := a.ListFiles(t.Context(), c.path, c.role == "admin")
		if c.code != codes.FailedPrecondition && (status.Code(err) != c.code || answer != nil) {
			t.Errorf("listing %s: %v, %v", c.path, answer, err)
		}
	}
}

// TestListFiles checks that a listing contains only allowed files, and the directories above
// allowed files.
func TestListFiles(t *testing.T) {
	a, _ := newTools(t)
	for _, c := range []struct {
		path, role string
		has, not   []string
	}{
		{"/", "reader", []string{"etc", "proc", "sys", "usr"}, []string{"state", "root", "dev", "tmp", "var", "boot"}},
		{"/", "admin", []string{"etc", "var"}, []string{"state", "root", "dev"}},
		{"/proc", "admin", []string{"cpuinfo", "net", "sys", "mounts"}, []string{"kcore", "kmsg", "self", "keys", "kallsyms", "iomem"}},
		{"/proc/sys/net/ipv4", "admin", []string{"ip_forward"}, []string{"tcp_fastopen_key"}},
		{fmt.Sprint("/proc/", os.Getpid()), "admin", []string{"net", "mounts", "mountinfo"}, []string{"environ", "mem", "fd", "root", "cmdline"}},
	} {
		answer, err := a.ListFiles(t.Context(), c.path, c.role == "admin")
		if err != nil || answer.Truncated {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		var names []string
		for _, e := range answer.Entries {
			names = append(names, e.Name)
		}
		for _, name := range c.has {
			if !slices.Contains(names, name) {
				t.Errorf("%s: %s is not in %v", c.path, name, names)
			}
		}
		for _, name := range c.not {
			if slices.Contains(names, name) {
				t.Errorf("%s: %s is listed for %s", c.path, name, c.role)
			}
		}
	}
}

// TestWithFile checks that reads are bounded in number and size, and end at shutdown.
func TestWithFile(t *testing.T) {
	a, shutDown := newTools(t)
	release, ended := make(chan struct{}), make(chan error, maxFileReads)
	for range maxFileReads {
		begun := make(chan struct{})
		go func() {
			ended <- a.withFile(t.Context(), "x", func(context.Context) error { close(begun); <-release; return errors.New("read") })
		}()
		<-begun
	}
	if err := a.withFile(t.Context(), "x", nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one read more than the limit: %v", err)
	}
	shutDown()
	for range maxFileReads {
		if err := <-ended; status.Code(err) != codes.Unavailable {
			t.Errorf("when the machine is shutting down: %v", err)
		}
	}
	close(release)
	for range maxFileReads { // each place is free again after the end of its read
		a.fileReads <- struct{}{}
	}
	name := filepath.Join(t.TempDir(), "large")
	for size, cut := range map[int64]bool{maxRead: false, maxRead + 1: true, 2 * maxRead: true} {
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		s := &pieces{}
		if err := sendFile(t.Context(), f, 0, s.Send); err != nil || s.cut != cut || s.text.Len() != maxRead {
			t.Errorf("a file of %d bytes: %d bytes sent, truncated %v, %v", size, s.text.Len(), s.cut, err)
		}
		s = &pieces{}
		if err := sendFile(t.Context(), f, size-3, s.Send); err != nil || s.cut || s.text.Len() != 3 {
			t.Errorf("the last 3 of %d bytes: %d bytes sent, truncated %v, %v", size, s.text.Len(), s.cut, err)
		}
		if err := sendFile(t.Context(), f, -1, s.Send); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a negative offset: %v", err)
		}
		f.Close()
	}
}

// TestReadPanics checks that a panic in a read fails only this read, and that the place of the read
// is free again.
func TestReadPanics(t *testing.T) {
	panics.OnPanic(func(*panics.Error) {})
	t.Cleanup(func() { panics.OnPanic(nil) })
	a, _ := newTools(t)
	for range maxFileReads + 1 {
		err := a.withFile(t.Context(), "/a", func(context.Context) error { panic("a fake below") })
		if !errors.As(err, new(*panics.Error)) {
			t.Errorf("a read that panics: got %v, want a panics.Error", err)
		}
		a.fileReads <- struct{}{} // waits until the place is free
		<-a.fileReads
	}
}

// TestFilesList checks that the allow-list contains no secret, and no directory above a secret.
func TestFilesList(t *testing.T) {
	for _, secret := range []string{
		"/", "/state", "/state/config", "/var", "/var/lib", "/var/lib/etcd/x", "/var/lib/kubelet/pods/x", "/var/lib/containerd/x", "/run/orlop/kube/api/x", "/run/orlop/apid/server.key",
		"/run/orlop", "/run/containerd/x", "/proc", "/proc/1/environ", "/proc/1/root", "/proc/keys", "/sys", "/sys/kernel/security/x", "/sys/firmware/x", "/sys/fs/bpf/x", "/dev/x", "/tmp/x",
		"/root/x", "/boot/x",
	} {
		for _, tree := range files.Trees {
			if secret == tree.Path || strings.HasPrefix(secret, tree.Path+"/") {
				t.Errorf("%s is in %s", secret, tree.Path)
			}
		}
	}
	for _, tree := range files.Trees {
		if !filepath.IsAbs(tree.Path) || filepath.Clean(tree.Path) != tree.Path {
			t.Errorf("%q is not an absolute path in its shortest form", tree.Path)
		}
	}
	if _, err := (&safefile.AllowList{Root: "/"}).Open("/etc/hostname", true); !errors.Is(err, safefile.ErrNotAllowed) {
		t.Errorf("Open with an empty allow-list: %v", err)
	}
}
