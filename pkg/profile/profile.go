// Package profile says where a process spends its time and its memory, in the form that `go tool
// pprof` opens.
//
// machined takes profiles of itself, and has those that it starts take theirs. Each of these is
// born with a Unix socket that listens: machined makes it (Listen), in a folder that only root
// enters, and the process answers on it (FromEnv). So no process opens a port, and one that has
// given up every right can answer, too.
package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

// Env names the environment variable with the number of the file descriptor of the socket.
const Env = "ORLOP_PROFILE_FD"

// Kinds are the profiles that there are. Their names are those of runtime/pprof, but for "cpu".
var Kinds = []string{"cpu", "heap", "allocs", "goroutine"}

// How long the processor is watched for a profile of kind cpu.
const (
	DefaultDuration = 30 * time.Second
	MaxDuration     = time.Minute
)

// maxSize is how many bytes of a profile are taken. One of a minute of the API server has some
// hundred KiB.
const maxSize = 3 << 20

// patience is how long a process may take for a profile, beside the time that it is watched.
const patience = 20 * time.Second

// Request is what is wanted.
type Request struct {
	Kind     string
	Duration time.Duration // for cpu
}

// Parse completes and checks an order as it comes from a caller. An empty kind is cpu, and no
// duration the usual one.
func Parse(kind string, duration time.Duration) (Request, error) {
	if kind == "" {
		kind = Kinds[0]
	}
	o := Request{Kind: kind, Duration: duration}
	switch {
	case !slices.Contains(Kinds, kind):
		return o, fmt.Errorf("kind %q: there is no such profile; there are %s", kind, strings.Join(Kinds, ", "))
	case kind != "cpu" && duration != 0:
		return o, fmt.Errorf("duration: a profile of kind %s shows a moment; only one of kind cpu takes time", kind)
	case duration < 0 || duration > MaxDuration:
		return o, fmt.Errorf("duration: %v is not between 0 and %v", duration, MaxDuration)
	case kind == "cpu" && duration == 0:
		o.Duration = DefaultDuration
	}
	return o, nil
}

// Profile takes a profile of this process. It ends early, with an error, when the context does.
func Profile(ctx context.Context, o Request) ([]byte, error) {
	var to bytes.Buffer
	if o.Kind != "cpu" {
		p := pprof.Lookup(o.Kind)
		if p == nil {
			return nil, fmt.Errorf("there is no profile %q", o.Kind)
		}
		err := p.WriteTo(&to, 0)
		return to.Bytes(), err
	}
	if err := pprof.StartCPUProfile(&to); err != nil {
		return nil, err
	}
	timer := time.NewTimer(o.Duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	pprof.StopCPUProfile() // writes it
	return to.Bytes(), ctx.Err()
}

// Listen makes the socket of a process, for it to inherit. The caller closes it.
func Listen(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("profile: cannot make a folder: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("profile: cannot replace the socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("profile: cannot listen: %w", err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	return l.File()
}

// Serve answers on an inherited socket until that fails. It closes it.
func Serve(socket *os.File) error {
	l, err := net.FileListener(socket) // has a descriptor of its own
	if err := errors.Join(err, socket.Close()); err != nil {
		return fmt.Errorf("profile: cannot use the socket: %w", err)
	}
	server := http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: patience}
	return server.Serve(l)
}

func answer(w http.ResponseWriter, r *http.Request) {
	duration, err := time.ParseDuration(r.FormValue("duration"))
	var text []byte
	if err == nil {
		text, err = Profile(r.Context(), Request{Kind: r.FormValue("kind"), Duration: min(duration, MaxDuration)})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(text) // whoever asked has gone
}

// Fetch takes a profile of the process that answers on a socket.
func Fetch(ctx context.Context, path string, o Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Duration+patience)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	query := url.Values{"kind": {o.Kind}, "duration": {o.Duration.String()}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://process/?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		// without the address that it does not have
		return nil, fmt.Errorf("it does not answer: %w", errors.Unwrap(err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxSize+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("it does not answer: %w", err)
	case len(text) > maxSize:
		return nil, fmt.Errorf("the profile has more than %d bytes; watch it for a shorter time", maxSize)
	case response.StatusCode != http.StatusOK:
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return text, nil
}
