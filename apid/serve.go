package apid

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/orlop-os/orlop/pkg/api"
)

// Options is what Serve works with.
type Options struct {
	Listener net.Listener // plain TCP; Serve closes it
	Dir      string       // folder of ServerCertFile, ServerKeyFile and OperatorCAsFile
	Backend  string       // path of machined's socket
	Log      io.Writer    // one JSON object per line: audit and refused handshakes
	// Ready is told when apid becomes ready or unready, with one line for people. It may be nil.
	Ready func(ready bool, detail string)
}

// stopGrace is how long calls going on may take to end when apid is told to stop.
const stopGrace = 2 * time.Second

// Serve answers until ctx ends, then gives the calls going on a moment to end. It returns nil when
// it was told to stop.
func Serve(ctx context.Context, o Options) error {
	backend, err := connect(o.Backend)
	if err != nil {
		return err
	}
	// nothing can be done about a failure, and nothing depends on it
	defer func() { _ = backend.Close() }()
	lookers, err := connect(o.Backend)
	if err != nil {
		return err
	}
	defer func() { _ = lookers.Close() }()

	log := slog.New(slog.NewJSONHandler(o.Log, nil))
	store := newStore(o.Dir)
	server, status := newServer(store, log, backend, lookers)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &watcher{store: store, backend: backend, health: status, log: log, ready: o.Ready}
	go w.run(ctx)
	go func() {
		<-ctx.Done()
		stopServer(server)
	}()
	limited := newLimitListener(o.Listener, maxPerAddress, [2]int{callerKind: maxConnections, machineKind: maxMachines}, maxUnproved, ConnectionsPerAddress, ConnectionBurst)
	if err := server.Serve(limited); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("apid: cannot serve on %s: %w", o.Listener.Addr(), err)
	}
	return nil
}

// connect makes a connection to machined, which takes so many calls at once over each, and lets
// others wait.
func connect(socket string) (*grpc.ClientConn, error) {
	backend, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxRequest)),
		grpc.WithReadBufferSize(transportBuffer), grpc.WithWriteBufferSize(transportBuffer),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("machined's socket %s: cannot use: %w", socket, err)
	}
	return backend, nil
}

// newServer makes the server. Calls of those who may only look, and of machines, go over a
// connection of their own: however many there are, an operator's call has a place, and so has what
// apid itself asks machined.
func newServer(store *store, log *slog.Logger, backend, lookers grpc.ClientConnInterface) (*grpc.Server, *health.Server) {
	judge := api.NewDoorClient(backend)
	g := &gate{roles: newRoleTable(), store: store, log: log, judge: judge, callers: callers{now: map[string]int{}}, lines: newLines()}
	server := grpc.NewServer(
		grpc.Creds(newDoor(store, log, judge)),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream),
		grpc.UnknownServiceHandler((&proxy{backend: backend, lookers: lookers}).handle),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxAnswer),
		grpc.ReadBufferSize(transportBuffer), grpc.WriteBufferSize(transportBuffer),
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: keepaliveTime, Timeout: keepaliveTimeout}),
	)
	status := health.NewServer()
	server.RegisterService(healthService(), status)
	reflectionpb.RegisterServerReflectionServer(server, brief{reflection.NewServerV1(reflection.ServerOptions{Services: services{}})})
	return server, status
}

// stopServer lets the calls going on end, and ends them when they take longer than stopGrace.
func stopServer(server *grpc.Server) {
	timer := time.AfterFunc(stopGrace, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// watcher keeps health and readiness true: they follow the connection to machined and the
// credentials' files.
type watcher struct {
	store   *store
	backend *grpc.ClientConn
	health  *health.Server
	log     *slog.Logger
	ready   func(bool, string)
	last    string
}

// expiredEvery is how long a call may go on after the certificate of who made it has expired.
const expiredEvery = time.Second

func (w *watcher) run(ctx context.Context) {
	changes := make(chan struct{}, 1)
	go w.watchBackend(ctx, changes)
	go w.watchFiles(ctx, changes)
	tick := time.NewTicker(expiredEvery)
	defer tick.Stop()
	for {
		w.report()
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.store.endExpired(now)
		case <-changes:
		}
	}
}

// report tells the present state where it has changed.
func (w *watcher) report() {
	detail, serving := "answering", healthpb.HealthCheckResponse_SERVING
	if err := w.store.problem(); err != nil {
		detail, serving = err.Error(), healthpb.HealthCheckResponse_NOT_SERVING
	} else if state := w.backend.GetState(); state != connectivity.Ready {
		detail, serving = "waiting for machined's socket", healthpb.HealthCheckResponse_NOT_SERVING
	}
	if detail == w.last {
		return
	}
	w.last = detail
	w.health.SetServingStatus("", serving)
	for _, name := range serviceNames() {
		w.health.SetServingStatus(name, serving)
	}
	ok := serving == healthpb.HealthCheckResponse_SERVING
	w.log.Info("apid", "ready", ok, "detail", detail)
	if w.ready != nil {
		w.ready(ok, detail)
	}
}

func (w *watcher) watchBackend(ctx context.Context, changes chan<- struct{}) {
	w.backend.Connect()
	for {
		state := w.backend.GetState()
		if state == connectivity.Idle {
			w.backend.Connect()
		}
		wake(changes)
		if !w.backend.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// watchFiles looks at the folder as soon as something in it changes, so that a call of an operator
// whose CA was removed ends at once and not with the next handshake.
func (w *watcher) watchFiles(ctx context.Context, changes chan<- struct{}) {
	files, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = files.Close() }() // the process ends with it
		err = files.Add(w.store.dir)
	}
	if err != nil {
		// Handshakes and calls look at the files themselves, so only the ending of calls is
		// delayed.
		w.log.Warn("apid: cannot watch the credentials' folder; changes are seen with the next call", "dir", w.store.dir, "reason", err.Error())
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-files.Events:
			if !ok {
				return
			}
			wake(changes)
		case err, ok := <-files.Errors:
			if !ok {
				return
			}
			w.log.Warn("apid: watching the credentials' folder", "reason", err.Error())
			wake(changes)
		}
	}
}

// wake wakes the receiver; one waiting signal is enough for any number of changes.
func wake(changes chan<- struct{}) {
	select {
	case changes <- struct{}{}:
	default:
	}
}
