package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
)

// Deps are the dependencies of the services.
type Deps struct {
	// Etcd does the work of service Etcd.
	Etcd Etcd
	// Unchanged marks a call that succeeds as a call that changed no data, for the audit log.
	Unchanged func(ctx context.Context)
}

// API holds the services.
type API struct {
	etcd etcdService
}

// New returns the services.
func New(d Deps) *API {
	return &API{
		etcd: etcdService{etcd: d.Etcd, unchanged: d.Unchanged},
	}
}

// Register registers the services on a server.
func (a *API) Register(s grpc.ServiceRegistrar) {
	api.RegisterEtcdServer(s, a.etcd)
}

// caller returns the caller of a call, for events.
func caller(ctx context.Context) string { return callerid.FromContext(ctx).String() }

// EndOfStream returns the status of a stream that the caller ended.
func EndOfStream(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return err
}
