package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	registrations "k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/spf13/pflag"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// Server is a kube-apiserver. Make it with New.
type Server struct {
	// Revoked, if set before Run, receives each error with which a webhook or a policy rejects a
	// request. It must not block.
	Revoked func(error)

	args    []string
	revoked string // path of the file of revoked certificates
	metrics []netip.AddrPort
	etcd    func(context.Context) error
	rights  func(context.Context, kubernetes.Interface) error
	rbac    rbacinformers.Interface // the authorizer's caches
	started chan struct{}           // closed when the server is about to serve

	// valid after started is closed
	loopback      *rest.Config
	informers     informers.SharedInformerFactory
	registrations registrations.SharedInformerFactory
}

// New returns a server with upstream's flags args. etcd waits until etcd answers, because the
// server repeats a refused connection only after a second. revoked is the path of the file of
// revoked client certificates. metricsAt are the addresses of the resource metrics API
// (metrics.Addresses). rights creates the system's own roles and bindings, in addition to
// upstream's.
func New(args []string, revoked string, metricsAt []netip.AddrPort, etcd func(context.Context) error, rights func(context.Context, kubernetes.Interface) error) *Server {
	return &Server{args: args, revoked: revoked, metrics: metricsAt, etcd: etcd, rights: rights, started: make(chan struct{})}
}

// Run serves until ctx is done, then waits for requests in progress and returns nil.
func (s *Server) Run(ctx context.Context) error {
	opts, err := parse(ctx, s.args, s.Revoked)
	if err != nil {
		return err
	}
	revoked, err := newRevocations(s.revoked)
	if err != nil {
		return err
	}
	go revoked.watch(ctx)
	config, documents, err := newConfig(opts, func() error { return s.etcd(ctx) }, revoked, s.metrics)
	if err != nil {
		return fmt.Errorf("cannot configure: %w", err)
	}
	completed, err := config.Complete()
	if err != nil {
		return fmt.Errorf("cannot configure: %w", err)
	}
	chain, err := app.CreateServerChain(completed)
	if err != nil {
		return fmt.Errorf("cannot assemble the server: %w", err)
	}
	core, ok := chain.GenericAPIServer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return errors.New("cannot assemble the server: upstream's aggregator no longer delegates to the core server")
	}
	documents.attach(core)
	s.rbac = config.KubeAPIs.ControlPlane.VersionedInformers.Rbac().V1()
	if err := chain.GenericAPIServer.AddPostStartHook(rightsHook, s.ensureRights); err != nil {
		return fmt.Errorf("cannot assemble the server: %w", err)
	}
	ahead := func(hook genericapiserver.PostStartHookContext) error {
		go documents.buildAhead(hook, aheadAfter)
		return nil
	}
	if err := chain.GenericAPIServer.AddPostStartHook(documentsHook, ahead); err != nil {
		return fmt.Errorf("cannot assemble the server: %w", err)
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return fmt.Errorf("cannot prepare the server: %w", err)
	}
	s.loopback = config.KubeAPIs.ControlPlane.Generic.LoopbackClientConfig
	s.informers, s.registrations = config.KubeAPIs.ControlPlane.VersionedInformers, chain.APIRegistrationInformers
	close(s.started)
	return prepared.Run(ctx)
}

// Loopback returns the server's privileged connection to itself, for the components that create the
// cluster's own objects and maintain the server. It waits until the server is about to serve.
func (s *Server) Loopback(ctx context.Context) (*rest.Config, error) {
	if err := component.Wait(ctx, s.started); err != nil {
		return nil, err
	}
	return rest.CopyConfig(s.loopback), nil
}

// Informers returns the informers of the server itself, for the built-in kinds and for APIServices.
// The components of the process share these informers, so the server sends each object to this
// process only once. No component may change an object. Informers waits until the server is about
// to serve.
func (s *Server) Informers(ctx context.Context) (informers.SharedInformerFactory, registrations.SharedInformerFactory, error) {
	if err := component.Wait(ctx, s.started); err != nil {
		return nil, nil, err
	}
	return s.informers, s.registrations, nil
}

// parse turns upstream's flags into upstream's options, completed and validated. rejected is
// Server.Revoked.
func parse(ctx context.Context, args []string, rejected func(error)) (options.CompletedOptions, error) {
	opts := options.NewServerRunOptions()
	registerPlugins(opts)
	exemptSystemRequests(opts, rejected)
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range opts.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return options.CompletedOptions{}, fmt.Errorf("flags: %w", err)
	}
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return options.CompletedOptions{}, fmt.Errorf("feature gates: %w", err)
	}
	// The server's own requests need no warnings about old API versions.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	completed, err := opts.Complete(ctx)
	if err != nil {
		return options.CompletedOptions{}, fmt.Errorf("flags: %w", err)
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return options.CompletedOptions{}, fmt.Errorf("flags: %w", utilerrors.NewAggregate(errs))
	}
	return completed, nil
}
