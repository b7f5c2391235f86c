// Package profile takes profiles of CPU time and memory, in the format of `go tool pprof`.
//
// machined takes profiles of itself by Profile. For other processes it creates a listening Unix
// socket in a directory that only root can access (Listen). The process inherits the socket and
// serves its profiles on it (FromEnv). So no process opens a port, and a process without privileges
// can serve profiles, too.
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

// Env is the environment variable with the descriptor number of the inherited socket.
const Env = "ORLOP_PROFILE_FD"

// Kinds are the supported kinds of profiles: "cpu", and names of runtime/pprof.
var Kinds = []string{"cpu", "heap", "allocs", "goroutine"}

// Sampling time of a CPU profile.
const (
	DefaultDuration = 30 * time.Second
	MaxDuration     = time.Minute
)

// maxSize is the maximum size of a profile in bytes. A CPU profile of the API server over a minute
// has some hundreds of KiB.
const maxSize = 3 << 20

// timeout is the time limit for taking a profile, in addition to its sampling time.
const timeout = 20 * time.Second

// Request selects a profile.
type Request struct {
	Kind     string
	Duration time.Duration // sampling time; for cpu only
}

// Parse returns the Request for the arguments of a client. An empty kind means cpu, and the
// duration 0 means DefaultDuration. Parse fails for an unknown kind and for a duration that is not
// permitted.
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

// Profile takes a profile of this process, in the format of pprof. When ctx ends, it stops a CPU
// profile and returns the error of ctx.
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

// Listen creates a socket for a process to inherit. The caller closes the file.
func Listen(path string) (*os.File, error) {
	socket, err := safefile.Listen(path, 0, 0o700)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return socket, nil
}

// Serve serves profiles of this process on an inherited socket until the listener fails. It closes
// the socket.
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
	_, _ = w.Write(text) // an error means that the client has disconnected
}

// Fetch takes a profile of the process that serves the socket at path.
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
		// The error of the client contains a placeholder URL. The cause within this error does not.
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
