package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/spf13/pflag"
)

// Server is one kube-apiserver. Make it with New.
type Server struct {
	args     []string
	revoked  string // file
	metrics  []netip.AddrPort
	etcd     func(context.Context) error
	rights   func(context.Context, kubernetes.Interface) error
	loopback chan *rest.Config
}

// New returns a server with upstream's flags args. It is started by Run. etcd waits until etcd answers: a connection
// that is refused is tried again only a second later. revoked is the file with the client certificates that count no more, metricsAt where
// the resource metrics API answers (metrics.Addresses). rights makes the roles and bindings of our own, beside upstream's.
func New(args []string, revoked string, metricsAt []netip.AddrPort, etcd func(context.Context) error, rights func(context.Context, kubernetes.Interface) error) *Server {
	return &Server{args: args, revoked: revoked, metrics: metricsAt, etcd: etcd, rights: rights, loopback: make(chan *rest.Config, 1)}
}

// Run serves until ctx is done, then lets requests under way finish and returns nil.
func (s *Server) Run(ctx context.Context) error {
	opts, err := parse(ctx, s.args)
	if err != nil {
		return err
	}
	revoked, err := newRevocations(s.revoked)
	if err != nil {
		return err
	}
	go revoked.follow(ctx)
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
		return fmt.Errorf("cannot be put together: %w", err)
	}
	core, ok := chain.GenericAPIServer.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return errors.New("cannot be put together: upstream's aggregator does not stand before the core server any more")
	}
	documents.attach(core)
	if err := chain.GenericAPIServer.AddPostStartHook(rightsHook, s.ensureRights); err != nil {
		return fmt.Errorf("cannot be put together: %w", err)
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return fmt.Errorf("cannot be prepared: %w", err)
	}
	s.loopback <- config.KubeAPIs.ControlPlane.Generic.LoopbackClientConfig
	return prepared.Run(ctx)
}

// Loopback returns the server's privileged connection to itself, for the one caller that makes the cluster's own
// objects. It waits until the server is about to serve.
func (s *Server) Loopback(ctx context.Context) (*rest.Config, error) {
	select {
	case config := <-s.loopback:
		return rest.CopyConfig(config), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// parse turns upstream's flags into upstream's options, completed and checked.
func parse(ctx context.Context, args []string) (options.CompletedOptions, error) {
	opts := options.NewServerRunOptions()
	registerPlugins(opts)
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
