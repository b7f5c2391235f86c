package metricsd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/metricsd/host"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/service/exposition"
)

// Options are the options of Serve.
type Options struct {
	Listener net.Listener // plain TCP; Serve closes it
	Dir      string       // directory of the credentials
	// Socket returns the path of the socket of a service.
	Socket func(service string) string
	Host   host.Source
	Log    io.Writer // one JSON object per line
	// Serve calls Ready when metricsd becomes ready or unready, with a line for the operator.
	Ready func(ready bool, detail string)
}

// source is a service and the path of its metrics on its socket.
type source struct{ service, path string }

// hostPath is the path of the metrics of the host. metricsd reads these metrics itself.
const hostPath = nodespec.MetricsResource + "/host"

// sources maps the other paths of the port to the services that have the metrics. On a worker, the
// services of the control plane do not run.
var sources = map[string]source{
	"/metrics/machine":            {nodespec.ServiceMachined, nodespec.MetricsOfMachine},
	"/metrics/etcd":               {nodespec.ServiceAPI, nodespec.MetricsOfEtcd},
	"/metrics/scheduler":          {nodespec.ServiceControllers, nodespec.MetricsOfScheduler},
	"/metrics/controllers":        {nodespec.ServiceControllers, nodespec.MetricsOfControllers},
	"/metrics/controller-manager": {nodespec.ServiceControllers, nodespec.MetricsOfControllerManager},
	"/metrics/containerd":         {nodespec.ServiceNode, nodespec.MetricsOfContainerd},
}

// server is the HTTP handler of the port.
type server struct {
	store   *store
	tokens  *tokens
	clients map[string]*http.Client // by service
	host    host.Source
	reads   limits.Bounded // reads of the host's metrics
	scrapes chan struct{}
	log     *slog.Logger
	logged  limits.Rates
}

// Serve serves until ctx ends. It returns nil when ctx ends, and an error if the listener fails.
func Serve(ctx context.Context, o Options) error {
	s := newServer(o)
	plain := &filter{Listener: o.Listener, store: s.store, open: limits.NewLimiter(maxConnections, maxPerAddress), refused: s.logRefusal}
	answers := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: scrapeTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		// TLS and HTTP errors of a connection are not logged, because the client sees its end
		MaxHeaderBytes: maxHeader, ErrorLog: log.New(io.Discard, "", 0),
	}
	stop := context.AfterFunc(ctx, panics.Guarded("stop", func() {
		ending, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if answers.Shutdown(ending) != nil {
			answers.Close()
		}
	}))
	defer stop()
	panics.Go("readiness", func() { s.watchFiles(ctx, o.Ready) })
	if err := answers.Serve(tls.NewListener(plain, s.store.tlsConfig())); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metricsd: cannot serve on %s: %w", o.Listener.Addr(), err)
	}
	return nil
}

func newServer(o Options) *server {
	s := &server{
		store: &store{dir: o.Dir}, clients: map[string]*http.Client{}, host: o.Host, scrapes: make(chan struct{}, maxScrapes),
		log: slog.New(slog.NewJSONHandler(o.Log, nil)), logged: limits.Rates{Interval: logInterval, Burst: logBurst},
	}
	for _, from := range sources {
		if s.clients[from.service] == nil {
			s.clients[from.service] = exposition.Client(o.Socket(from.service))
		}
	}
	s.tokens = newTokens(s.review, time.Now)
	return s
}

// reloadInterval is the interval at which watchFiles checks the files for the readiness. Each
// request checks the files, too.
const reloadInterval = 10 * time.Second

// watchFiles calls report whenever the newest credentials become valid or invalid, until ctx ends.
func (s *server) watchFiles(ctx context.Context, report func(ready bool, detail string)) {
	tick := time.NewTicker(reloadInterval)
	defer tick.Stop()
	for last := "unreported"; ; {
		detail := ""
		if _, err := s.store.get(); err != nil {
			detail = err.Error()
		}
		if detail != last {
			report(detail == "", detail)
			last = detail
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// logRefusal logs a rejected caller, with a rate limit for each network.
func (s *server) logRefusal(peer, why string) {
	if s.logged.Allow(limits.NetworkOf(peer)) {
		s.log.Info("rejected", "peer", peer, "reason", why)
	}
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reject := func(status int, why string) {
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, why, status)
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		reject(http.StatusMethodNotAllowed, "only GET is possible here")
		return
	}
	if status, why := s.authorize(r); status != http.StatusOK {
		s.logRefusal(r.RemoteAddr, why)
		reject(status, why)
		return
	}
	from, known := sources[r.URL.Path]
	if !known && r.URL.Path != hostPath {
		reject(http.StatusNotFound, "the paths are "+strings.Join(Paths(), ", "))
		return
	}
	release, ok := limits.TryAcquire(s.scrapes)
	if !ok {
		reject(http.StatusServiceUnavailable, "too many scrapes run at present; try again")
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	err := panics.Do("scrape", func() error {
		if known {
			return s.relay(ctx, w, from)
		}
		return s.serveHost(ctx, w)
	})
	switch {
	case errors.Is(err, errIncomplete):
		// http.ErrAbortHandler closes the connection, so the caller does not take the incomplete
		// answer for a complete one.
		panic(http.ErrAbortHandler)
	case err != nil:
		reject(http.StatusBadGateway, err.Error())
	}
}

// errIncomplete means that a part of the answer was sent, and the rest cannot be sent.
var errIncomplete = errors.New("the answer is incomplete")

// Paths returns the paths of the port, sorted.
func Paths() []string {
	list := []string{hostPath}
	for path := range sources {
		list = append(list, path)
	}
	slices.Sort(list)
	return list
}

// authorize returns status 200 if the caller of a request may read the metrics. Otherwise it
// returns another status and the reason.
func (s *server) authorize(r *http.Request) (status int, why string) {
	current, err := s.store.get()
	if current == nil {
		return http.StatusServiceUnavailable, err.Error()
	}
	// The settings may have changed since the connection was accepted.
	if at := limits.AddressOf(r.RemoteAddr); !current.admits(at) {
		return http.StatusForbidden, errNotAdmitted.Error()
	}
	if presented := r.TLS.PeerCertificates; len(presented) > 0 {
		if err := current.checkCertificate(presented); err != nil {
			return http.StatusForbidden, err.Error()
		}
		return http.StatusOK, ""
	}
	token, isToken := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case !isToken || token == "":
		return http.StatusUnauthorized, "show a certificate for the management API or a token of the cluster"
	case !current.settings.Tokens:
		return http.StatusForbidden, "this machine accepts no tokens here (Machine.spec.metrics.callers)"
	case len(token) > maxToken:
		return http.StatusUnauthorized, "the token is too long"
	}
	switch got, err := s.tokens.check(r.Context(), token, r.RemoteAddr); {
	case errors.Is(err, errBusy):
		return http.StatusTooManyRequests, err.Error()
	case err != nil:
		return http.StatusServiceUnavailable, err.Error()
	case got == unauthenticated:
		return http.StatusUnauthorized, "the token is not valid in this cluster"
	case got == forbidden:
		return http.StatusForbidden, "the token has no right to get the nonResourceURL " + nodespec.MetricsResource
	}
	return http.StatusOK, ""
}

// review asks orchestrator-node to check a token, because only that process can call the API
// server.
func (s *server) review(ctx context.Context, token string) (verdict, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node"+nodespec.AuthorizeMetrics, nil)
	if err != nil {
		return unknown, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := s.clients[nodespec.ServiceNode].Do(request)
	if err != nil {
		return unknown, fmt.Errorf("%s does not answer: %w", nodespec.ServiceNode, errors.Unwrap(err))
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNoContent:
		return admitted, nil
	case http.StatusUnauthorized:
		return unauthenticated, nil
	case http.StatusForbidden:
		return forbidden, nil
	}
	// After a read error, the reason is incomplete, which is better than none.
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
	return unknown, errors.New(strings.TrimSpace(string(text)))
}

// relay sends the metrics of another process to the caller, unchanged.
func (s *server) relay(ctx context.Context, w http.ResponseWriter, from source) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://process"+from.path, nil)
	if err != nil {
		return err
	}
	response, err := s.clients[from.service].Do(request)
	if err != nil {
		return fmt.Errorf("%s does not answer on this machine: %w", from.service, errors.Unwrap(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
		return fmt.Errorf("%s: %s", from.service, strings.TrimSpace(string(text)))
	}
	w.Header().Set("Content-Type", exposition.ContentType)
	n, err := io.Copy(w, io.LimitReader(response.Body, maxAnswer+1))
	if err != nil || n > maxAnswer {
		return errIncomplete
	}
	return nil
}

// serveHost sends the metrics of the host to the caller.
func (s *server) serveHost(ctx context.Context, w http.ResponseWriter) error {
	families, err := limits.Read(ctx, &s.reads, "metrics of the host", scrapeTimeout, func(context.Context) (*exposition.Families, error) {
		return s.host.Read(), nil
	})
	if err != nil {
		return fmt.Errorf("the metrics of the host: %w", err)
	}
	w.Header().Set("Content-Type", exposition.ContentType)
	_ = families.Write(w) // Write fails only if the client has disconnected
	return nil
}

var errNotAdmitted = errors.New("this address may not connect (Machine.spec.metrics.from)")

// filter is a listener that accepts connections only from the configured networks, and limits their
// number.
type filter struct {
	net.Listener
	store   *store
	open    *limits.Limiter // counts the open connections of each address
	refused func(peer, why string)
}

// Accept implements net.Listener.
func (f *filter) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := conn.RemoteAddr().String()
		release, err := f.admit(peer)
		if err != nil {
			f.refused(peer, err.Error())
			_ = conn.Close() // the client only sees the end of the connection
			continue
		}
		return &counted{Conn: conn, release: release}, nil
	}
}

func (f *filter) admit(peer string) (release func(), err error) {
	at := limits.AddressOf(peer)
	current, err := f.store.get()
	switch {
	case current == nil:
		return nil, err
	case !current.admits(at):
		return nil, errNotAdmitted
	}
	release, _, err = f.open.Acquire(at.String())
	return release, err
}

// counted is a connection that leaves the count of its address when it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.release()
	return c.Conn.Close()
}
