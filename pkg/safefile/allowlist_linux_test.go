package safefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// machine creates a directory with allowed files, forbidden files, and links between them. It
// returns an AllowList with this directory as root.
func machine(t *testing.T) *AllowList {
	t.Helper()
	root := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{
		"sys/devices/net0/speed": 0o444, "sys/devices/net0/dhchap_secret": 0o444, "sys/devices/net0/password_in": 0o644, "sys/devices/net0/serial": 0o400,
		"usr/share/file": 0o644, "usr/share/config.yaml": 0o644, "usr/share/keyboard": 0o644, "proc/cpuinfo": 0o444, "proc/kcore": 0o444,
		"var/log/pods/0.log": 0o640, "var/lib/secret": 0o644, "state/key": 0o644, "usr2/file": 0o644, "etc/hostname": 0o644,
	} {
		must(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(os.WriteFile(filepath.Join(root, name), []byte("content of "+name), 0o600))
		must(os.Chmod(filepath.Join(root, name), mode))
	}
	must(os.MkdirAll(filepath.Join(root, "sys/class"), 0o755))
	for name, target := range map[string]string{
		"sys/class/net0": "../devices/net0", "usr/share/absolute": "/usr/share/file", "usr/share/out": "../../state/key", "usr/share/far": "/state/key",
		"usr/share/above": "../../../../../../../../etc/hostname", "usr/share/directory": "/state", "usr/share/magic": "/proc/self/root", "usr/share/loop": "loop",
		"var/log/hidden": "/usr/share/config.yaml", "usr/share/secretly": "/sys/devices/net0/dhchap_secret",
	} {
		must(os.Symlink(target, filepath.Join(root, name)))
	}
	must(unix.Mkfifo(filepath.Join(root, "usr/share/pipe"), 0o644))
	must(os.Chmod(filepath.Join(root, "usr/share/pipe"), 0o644))
	socket, err := net.Listen("unix", filepath.Join(root, "usr/share/socket"))
	must(err)
	t.Cleanup(func() { socket.Close() })
	return &AllowList{Root: root, Trees: []Subtree{{Path: "/sys/class"}, {Path: "/sys/devices"}, {Path: "/usr"}, {Path: "/proc/cpuinfo"}, {Path: "/var/log", Private: true}},
		Hidden: []string{"/usr/share/config.yaml"}, Secret: regexp.MustCompile(`secret|password|(^|_)key$`)}
}

// content opens a file with AllowList.Open and returns its content. all is true for a caller with
// access to secrets.
func content(l *AllowList, name string, all bool) (string, error) {
	f, err := l.Open(name, all)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return string(text), err
}

func TestOpen(t *testing.T) {
	l := machine(t)
	for name, want := range map[string]string{
		"/proc/cpuinfo": "proc/cpuinfo", "/sys/devices/net0/speed": "sys/devices/net0/speed", "/sys/class/net0/speed": "sys/devices/net0/speed",
		"/usr/share/absolute": "usr/share/file", "/usr/share/keyboard": "usr/share/keyboard",
	} {
		if got, err := content(l, name, false); err != nil || got != "content of "+want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]error{
		// Outside of the trees, in several notations.
		"/state/key": ErrNotAllowed, "/proc/kcore": ErrNotAllowed, "/usr2/file": ErrNotAllowed, "/var/lib/secret": ErrNotAllowed, "/usr/../state/key": ErrNotAllowed,
		"/usr/share/../../state/key": ErrNotAllowed, "usr/share/file": ErrNotAllowed, "": ErrNotAllowed, "/usr//share/file": ErrNotAllowed, "/usr/share/file\x00": ErrNotAllowed,
		"/proc/cpuinfo/../kcore": ErrNotAllowed,
		// Links out of the trees.
		"/usr/share/out": ErrNotAllowed, "/usr/share/far": ErrNotAllowed, "/usr/share/directory": ErrNotAllowed, "/usr/share/directory/key": ErrNotAllowed, "/usr/share/above": ErrNotAllowed,
		"/usr/share/loop": ErrNotAllowed,
		// Hidden, secret, or not readable for all users.
		"/usr/share/config.yaml": ErrNotAllowed, "/sys/class/net0/dhchap_secret": ErrNotAllowed, "/sys/devices/net0/password_in": ErrNotAllowed,
		"/sys/devices/net0/serial": ErrNotAllowed, "/usr/share/secretly": ErrNotAllowed, "/var/log/pods/0.log": ErrNotAllowed,
		// In a tree, a missing file is fs.ErrNotExist. Outside of the trees, it is ErrNotAllowed.
		"/usr/share/none": fs.ErrNotExist, "/usr/share/file/x": fs.ErrNotExist, "/state/none": ErrNotAllowed, "/none": ErrNotAllowed, "/usr/share/dhchap_secret": ErrNotAllowed,
		"/usr/share/pipe": ErrKind,
	} {
		if got, err := content(l, name, false); !errors.Is(err, want) || got != "" {
			t.Errorf("%q: %q, %v; want %v", name, got, err, want)
		}
	}
	// With access to secrets, a caller may also read private trees.
	if got, err := content(l, "/var/log/pods/0.log", true); err != nil || got != "content of var/log/pods/0.log" {
		t.Errorf("%q, %v", got, err)
	}
	for _, name := range []string{"/state/key", "/var/log/hidden", "/usr/share/out", "/sys/devices/net0/serial", "/sys/class/net0/dhchap_secret"} {
		if got, err := content(l, name, true); !errors.Is(err, ErrNotAllowed) || got != "" {
			t.Errorf("%s, with access to secrets: %q, %v", name, got, err)
		}
	}
	if err := os.Chmod(filepath.Join(l.Root, "usr/share/socket"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Open("/usr/share/socket", false); !errors.Is(err, ErrKind) {
		t.Errorf("a socket: %v", err)
	}
}

// TestReplaced checks that Open opens the file that it has checked, even while another process
// replaces the file by a link out of the trees, again and again.
func TestReplaced(t *testing.T) {
	l := machine(t)
	name := filepath.Join(l.Root, "usr/share/flips")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			target := []string{"/usr/share/file", "/state/key"}[i%2]
			if err := errors.Join(os.Symlink(target, name+".new"), os.Rename(name+".new", name)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 2000 {
		got, err := content(l, "/usr/share/flips", false)
		if got != "content of usr/share/file" && !errors.Is(err, ErrNotAllowed) && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	close(stop)
	<-stopped
}

// TestThisMachine checks that Open opens files of the kernel, and no files of a process.
func TestThisMachine(t *testing.T) {
	own := fmt.Sprintf("/proc/%d/", os.Getpid())
	l := &AllowList{Root: "/", Trees: []Subtree{{Path: "/proc/meminfo"}, {Path: "/proc/net"}, {Path: own + "net"}, {Path: "/proc/mounts"}, {Path: own + "mounts"}, {Path: "/dev/null"}}}
	for name, want := range map[string]string{"/proc/meminfo": "MemTotal:", "/proc/net/dev": "Receive", "/proc/mounts": "proc"} {
		if got, err := content(l, name, false); err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %.100q, %v", name, got, err)
		}
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, name := range []string{"/proc/self/environ", own + "environ", own + "mem", own + "maps", own + "cmdline", "/proc/self/root/proc/meminfo", own + "cwd", "/proc/kcore",
		fmt.Sprintf("/proc/self/fd/%d", f.Fd()), own + "task", "/proc/thread-self/environ", own + "net/../environ", "/proc/1/environ", "/proc/self/exe", "/proc/self/net/dev"} {
		if got, err := content(l, name, true); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s: %.100q, %v", name, got, err)
		}
	}
	if _, err := l.Open("/dev/null", true); !errors.Is(err, ErrKind) {
		t.Errorf("a device: %v", err)
	}
}

// TestNotResolved checks that Open rejects a path outside of the trees before it opens the root.
func TestNotResolved(t *testing.T) {
	l := &AllowList{Root: filepath.Join(t.TempDir(), "none"), Trees: []Subtree{{Path: "/usr"}, {Path: "/var/log", Private: true}}}
	for _, name := range []string{"/mnt/hangs", "/usr2", "/var/log/x"} {
		if _, err := l.Open(name, false); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := l.Open("/usr/x", false); err == nil || errors.Is(err, ErrNotAllowed) {
		t.Error(err)
	}
}

func TestEntries(t *testing.T) {
	l := machine(t)
	for name, want := range map[string]string{
		"/": "proc sys usr", "/proc": "cpuinfo", "/sys": "class devices", "/sys/class": "net0->../devices/net0", "/sys/class/net0": "speed",
		"/proc/cpuinfo": "cpuinfo",
	} {
		if got := listed(t, l, name, false); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := listed(t, l, "/", true); got != "proc sys usr var" {
		t.Errorf("/ with access to secrets: %q", got)
	}
	if got := listed(t, l, "/var", true) + " " + listed(t, l, "/var/log", true); got != "log hidden->/usr/share/config.yaml pods" {
		t.Errorf("/var and /var/log with access to secrets: %q", got)
	}
	if got := listed(t, l, "/usr/share", false); strings.Contains(got, "config.yaml ") || !strings.Contains(got, "file ") || !strings.Contains(got, "far->/state/key") {
		t.Errorf("%q", got)
	}
	list, more, err := l.Entries("/usr/share", false, 3)
	if err != nil || len(list) != 3 || !more {
		t.Errorf("%d entries, %v, %v", len(list), more, err)
	}
	list, _, err = l.Entries("/usr/share/file", false, 3)
	if err != nil || len(list) != 1 || list[0].Size != int64(len("content of usr/share/file")) || list[0].Mode.String() != "-rw-r--r--" || list[0].Modified.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	for _, name := range []string{"/state", "/var", "/var/lib", "/usr/share/directory", "/usr2"} {
		if _, _, err := l.Entries(name, false, 3); !errors.Is(err, ErrNotAllowed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// listed returns the names in a directory, and the targets of its links, separated by blanks.
func listed(t *testing.T, l *AllowList, name string, all bool) string {
	t.Helper()
	list, more, err := l.Entries(name, all, 100)
	if err != nil || more {
		t.Errorf("%s: %v, %v", name, more, err)
	}
	var out []string
	for _, e := range list {
		if e.Target != "" {
			e.Name += "->" + e.Target
		}
		out = append(out, e.Name)
	}
	return strings.Join(out, " ")
}
