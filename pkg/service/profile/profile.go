// Package profile takes profiles of CPU time and memory, in the format of `go tool pprof`.
//
// machined takes its own profiles directly. Each process that machined starts inherits a listening
// Unix socket: machined creates it (Listen) in a directory that only root can access, and the
// process serves its profiles on it (FromEnv). So no process opens a port, and even a process
// without any privilege can serve profiles.
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
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Env is the environment variable with the number of the file descriptor of the socket.
const Env = "ORLOP_PROFILE_FD"

// Kinds are the supported profiles, with the names of runtime/pprof except "cpu".
var Kinds = []string{"cpu", "heap", "allocs", "goroutine"}

// The sampling time of a CPU profile.
const (
	DefaultDuration = 30 * time.Second
	MaxDuration     = time.Minute
)

// maxSize is the maximum size of a profile in bytes. A profile of the API server over a minute has
// some hundred KiB.
const maxSize = 3 << 20

// timeout is the timeout for a profile, in addition to its sampling time.
const timeout = 20 * time.Second

// Request selects a profile.
type Request struct {
	Kind     string
	Duration time.Duration // for cpu
}

// Parse completes and checks a request from a client. An empty kind means cpu, and a zero duration
// the default.
func Parse(kind string, duration time.Duration) (Request, error) {
	if kind == "" {
		kind = Kinds[0]
	}
	o := Request{Kind: kind, Duration: duration}
	switch {
	case !slices.Contains(Kinds, kind):
		return o, fmt.Errorf("kind %q: unknown profile; expected one of %s", kind, strings.Join(Kinds, ", "))
	case kind != "cpu" && duration != 0:
		return o, fmt.Errorf("duration: a profile of kind %s shows a moment; only one of kind cpu takes time", kind)
	case duration < 0 || duration > MaxDuration:
		return o, fmt.Errorf("duration: %v is not between 0 and %v", duration, MaxDuration)
	case kind == "cpu" && duration == 0:
		o.Duration = DefaultDuration
	}
	return o, nil
}

// Profile takes a profile of this process. It ends early, with an error, if the context ends.
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
	pprof.StopCPUProfile() // writes the profile
	return to.Bytes(), ctx.Err()
}

// Listen creates a listening socket for a process to inherit. The caller closes it.
func Listen(path string) (*os.File, error) {
	socket, err := safefile.Listen(path, 0, 0o700)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return socket, nil
}

// Serve serves profiles on an inherited socket until that fails. It closes the socket.
func Serve(socket *os.File) error {
	l, err := net.FileListener(socket) // duplicates the descriptor
	if err := errors.Join(err, socket.Close()); err != nil {
		return fmt.Errorf("profile: cannot use the socket: %w", err)
	}
	server := http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: timeout}
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
	_, _ = w.Write(text) // fails if the client has disconnected
}

// Fetch takes a profile of the process behind a socket.
func Fetch(ctx context.Context, path string, o Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Duration+timeout)
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
		// without the placeholder URL
		return nil, fmt.Errorf("it does not answer: %w", errors.Unwrap(err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxSize+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("it does not answer: %w", err)
	case len(text) > maxSize:
		return nil, fmt.Errorf("the profile has more than %d bytes; choose a shorter duration", maxSize)
	case response.StatusCode != http.StatusOK:
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return text, nil
}
