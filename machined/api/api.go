package api

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// Deps are the dependencies of the services.
type Deps struct {
	Machine MachineDeps
	Config  ConfigDeps
	// Services are the supervised processes, for the services Service and Log.
	Services *supervise.Manager
	// KernelStarted returns the start of the kernel, to which the times of the kernel log are
	// relative.
	KernelStarted func() (time.Time, error)
	Cluster       ClusterDeps
	Internal      InternalDeps
	Upgrade       UpgradeDeps
	Audit         AuditDeps
	// Certificates does the work of service Trust.
	Certificates Certificates
	// Images does the work of service Image.
	Images Images
	// ContainerdReady returns a gRPC status while containerd does not run.
	ContainerdReady func() error
	// Debug does the work of service Debug.
	Debug Debug
	// Etcd does the work of service Etcd.
	Etcd Etcd
	// Attestation does the work of service Attestation.
	Attestation AttestationDeps
	// Event adds an event.
	Event func(source, kind, message string)
}

// API holds the services.
type API struct {
	machine  machineService
	config   configService
	process  processService
	log      logService
	image    imageService
	cluster  clusterService
	trust    trustService
	upgrade  upgradeService
	audit    auditService
	internal internalService
	debug    debugService
	etcd     etcdService
	attest   attestationService
}

// New returns the services.
func New(d Deps) *API {
	return &API{
		machine:  machineService{deps: d.Machine, debug: d.Debug, relays: newRelays()},
		config:   configService{deps: d.Config},
		process:  processService{services: d.Services, event: d.Event},
		log:      logService{services: d.Services, kernelStarted: d.KernelStarted, debug: d.Debug},
		cluster:  clusterService{deps: d.Cluster, event: d.Event},
		trust:    trustService{certificates: d.Certificates},
		internal: internalService{deps: d.Internal, log: d.Audit.Log},
		upgrade:  upgradeService{deps: d.Upgrade},
		audit:    auditService{deps: d.Audit},
		image:    imageService{images: d.Images, containerdReady: d.ContainerdReady},
		debug:    debugService{debug: d.Debug},
		etcd:     etcdService{etcd: d.Etcd},
		attest:   attestationService{deps: d.Attestation},
	}
}

// Register registers the services on a server.
func (a *API) Register(s grpc.ServiceRegistrar) {
	api.RegisterMachineServer(s, a.machine)
	api.RegisterConfigServer(s, a.config)
	api.RegisterServiceServer(s, a.process)
	api.RegisterLogServer(s, a.log)
	api.RegisterImageServer(s, a.image)
	api.RegisterClusterServer(s, a.cluster)
	api.RegisterTrustServer(s, a.trust)
	api.RegisterApidInternalServer(s, a.internal)
	api.RegisterUpgradeServer(s, a.upgrade)
	api.RegisterAuditServer(s, a.audit)
	api.RegisterDebugServer(s, a.debug)
	api.RegisterEtcdServer(s, a.etcd)
	api.RegisterAttestationServer(s, a.attest)
}

// caller returns the caller of a call, for events.
func caller(ctx context.Context) string { return api.CallerFromContext(ctx).String() }

// endOfStream returns the status with which a stream ends: no error after a regular end, or the
// status of a caller that has left.
func endOfStream(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return err
}
