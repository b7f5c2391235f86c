package exposition

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// TestWrite checks the text format, with values that need an escape or a replacement.
func TestWrite(t *testing.T) {
	var f Families
	f.Counter("b_total", "The\nhelp.", 3, "device", "a\"b\\c", "bad", "x\xff")
	f.Counter("b_total", "The\nhelp.", 4, "device", "d", "bad", "")
	f.Gauge("a", "A.", 0.5)
	f.Untyped("c", "C.", 1e18)
	var text strings.Builder
	if err := f.Write(&text); err != nil {
		t.Fatal(err)
	}
	want := "# HELP a A.\n# TYPE a gauge\na 0.5\n" +
		"# HELP b_total The\\nhelp.\n# TYPE b_total counter\nb_total{device=\"a\\\"b\\\\c\",bad=\"x�\"} 3\nb_total{device=\"d\",bad=\"\"} 4\n" +
		"# HELP c C.\n# TYPE c untyped\nc 1e+18\n"
	if text.String() != want {
		t.Errorf("%s\nwant\n%s", text.String(), want)
	}
	if got := strings.Join(f.Names(), " "); got != "a b_total c" {
		t.Errorf("names %q", got)
	}
	if err := new(Families).Write(&text); err != nil {
		t.Error(err)
	}
}

// TestSocket serves on an inherited socket, as the processes of a machine do.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "directory", "m.sock")
	socket, err := safefile.Listen(path, 0, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(socket.Fd()))
	socket.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(Env, strconv.Itoa(fd))
	listener, err := Inherited()
	if err != nil || listener == nil || os.Getenv(Env) != "" {
		t.Fatalf("%v, %v, %q", listener, err, os.Getenv(Env))
	}
	go func() {
		_ = Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	}()
	defer listener.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://process/etcd", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := Client(path).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "/etcd" {
		t.Errorf("%q, %v", text, err)
	}
	if again, err := Inherited(); again != nil || err != nil {
		t.Errorf("Inherited without a socket = %v, %v; want nil, nil", again, err)
	}
}

// TestListen checks the owner and the mode of a socket.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.sock")
	socket, err := Listen(path)
	if os.Getuid() != 0 {
		if err == nil {
			t.Error("Listen succeeds without root, although it must change the owner of the socket")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil || s.Uid != 0 || s.Gid != paths.UserMetrics || s.Mode&0o777 != 0o660 {
		t.Errorf("owner %d:%d, mode %o, %v", s.Uid, s.Gid, s.Mode, err)
	}
}
