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
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/relay"
)

// Options are the options of Serve.
type Options struct {
	Listener net.Listener // plain TCP; Serve closes it
	Dir      string       // directory of ServerCertFile, ServerKeyFile and OperatorCAsFile
	Backend  string       // path of machined's socket
	Log      io.Writer    // one JSON object per line, for calls and rejected handshakes
	// Serve calls Ready when apid becomes ready or unready, with a line for the operator. Ready may
	// be nil.
	Ready func(ready bool, detail string)
}

// stopGracePeriod is the time for active calls to end when apid stops.
const stopGracePeriod = 2 * time.Second

// Serve serves until ctx ends, and then gives active calls stopGracePeriod to end. It returns nil
// when ctx ends, and an error if the listener or the connection to machined fails.
func Serve(ctx context.Context, o Options) error {
	backend, err := connect(o.Backend)
	if err != nil {
		return err
	}
	// The process ends, so the error of Close is irrelevant.
	defer func() { _ = backend.Close() }()
	readOnly, err := connect(o.Backend)
	if err != nil {
		return err
	}
	defer func() { _ = readOnly.Close() }()

	log := slog.New(slog.NewJSONHandler(o.Log, nil))
	store := newStore(o.Dir)
	server, status := newServer(store, log, backend, readOnly)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &watcher{store: store, backend: backend, health: status, log: log, ready: o.Ready}
	go w.run(ctx)
	go func() {
		<-ctx.Done()
		stopServer(server)
	}()
	limited := newLimitListener(o.Listener, maxPerAddress, [2]int{userKind: maxConnections, machineKind: maxMachines}, maxUnauthenticated, ConnectionsPerAddress, ConnectionBurst)
	if err := server.Serve(limited); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("apid: cannot serve on %s: %w", o.Listener.Addr(), err)
	}
	return nil
}

// connect returns a connection to machined. machined limits the concurrent calls of a connection;
// gRPC lets further calls wait.
func connect(socket string) (*grpc.ClientConn, error) {
	backend, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(relay.NewCodec()), grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(maxRequest)),
		grpc.WithReadBufferSize(transportBuffer), grpc.WithWriteBufferSize(transportBuffer),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
	)
	if err != nil {
		return nil, fmt.Errorf("machined's socket %s: cannot use: %w", socket, err)
	}
	return backend, nil
}

// newServer creates the gRPC server. readOnly is a separate connection to machined for the calls of
// readers, machines and narrow roles. Any number of these calls cannot block the calls of operators
// or of apid itself, which use backend.
func newServer(store *store, log *slog.Logger, backend, readOnly grpc.ClientConnInterface) (*grpc.Server, *health.Server) {
	internal := api.NewApidInternalClient(backend)
	g := &interceptor{roles: newRoleTable(), store: store, log: log, internal: internal, callers: callers{active: map[string]int{}}, logLimit: newLogLimit()}
	server := grpc.NewServer(
		grpc.Creds(newServerCredentials(store, log, internal)),
		grpc.ForceServerCodecV2(relay.NewCodec()),
		grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream),
		grpc.UnknownServiceHandler((&proxy{backend: backend, readOnly: readOnly}).handle),
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
	reflectionpb.RegisterServerReflectionServer(server, limitedReflection{reflection.NewServerV1(reflection.ServerOptions{Services: services{}})})
	return server, status
}

// stopServer waits for the active calls, and ends them after stopGracePeriod.
func stopServer(server *grpc.Server) {
	timer := time.AfterFunc(stopGracePeriod, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// watcher updates health and readiness when the connection to machined or a file of the credentials
// changes.
type watcher struct {
	store   *store
	backend *grpc.ClientConn
	health  *health.Server
	log     *slog.Logger
	ready   func(bool, string)
	last    string
}

// expiryCheckInterval is the interval at which the watcher ends calls with an expired certificate.
const expiryCheckInterval = time.Second

func (w *watcher) run(ctx context.Context) {
	changes := cell.NewSignal()
	go w.watchBackend(ctx, changes)
	go w.watchFiles(ctx, changes)
	tick := time.NewTicker(expiryCheckInterval)
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

// report publishes the readiness if its detail has changed.
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

func (w *watcher) watchBackend(ctx context.Context, changes cell.Signal) {
	w.backend.Connect()
	for {
		state := w.backend.GetState()
		if state == connectivity.Idle {
			w.backend.Connect()
		}
		changes.Wake()
		if !w.backend.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// watchFiles wakes the watcher as soon as a file of the directory changes. The watcher then reloads
// the files at once, so the active calls of a client end when its CA is removed.
func (w *watcher) watchFiles(ctx context.Context, changes cell.Signal) {
	files, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = files.Close() }() // the process ends afterwards
		err = files.Add(w.store.dir)
	}
	if err != nil {
		// The next handshake or call also checks the files, so a failure here only delays the end
		// of active calls.
		w.log.Warn("apid: cannot watch the credentials directory; changes take effect with the next call", "dir", w.store.dir, "reason", err.Error())
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
			changes.Wake()
		case err, ok := <-files.Errors:
			if !ok {
				return
			}
			w.log.Warn("apid: watching the credentials directory", "reason", err.Error())
			changes.Wake()
		}
	}
}
