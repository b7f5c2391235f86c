package upgrade

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/artifact/registry"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/panics"
)

// findTimeout bounds the search for a bundle in a registry, or at a peer, which reads all of it
// first.
const findTimeout = 5 * time.Minute

// bundleSource is a bundle in a registry or at a peer.
type bundleSource interface {
	SHA256() string // lower-case hexadecimal
	Size() int64    // bytes
	// Reader reads from an offset, until ctx ends.
	Reader(ctx context.Context, at int64) io.Reader
}

// find finds the bundle of a request.
func (r *Receiver) find(ctx context.Context, request *api.FetchBundleRequest) (bundleSource, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	switch {
	case request.Peer == "":
		from := registry.Source{Reference: request.Reference, CA: request.Ca, PlainHTTP: request.PlainHttp, Username: request.Username, Password: request.Password, Egress: r.deps.Node.Egress()}
		return from.Find(ctx, bundle.TypeArchive)
	case request.Reference != "" || len(request.Ca) > 0 || request.PlainHttp || request.Username != "" || request.Password != "":
		return nil, errors.New("upgrade refused: a bundle is fetched from a registry or from another machine, and not from both")
	}
	return r.findPeer(ctx, request.Peer)
}

// Fetch fetches a bundle for a caller, and returns when the upgrade has started.
func (r *Receiver) Fetch(ctx context.Context, request *api.FetchBundleRequest, by string) (*api.UpgradeStarted, error) {
	i, err := r.installer(request.WithoutSavepoint)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	f, err := r.find(ctx, request)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := r.start(ctx, i, f, r.ask(request.Force, by)); err != nil {
		return nil, err
	}
	return r.started(), nil
}

// start fetches and installs a bundle that was found, and returns when the upgrade has started.
func (r *Receiver) start(ctx context.Context, i Installer, f bundleSource, q *question) error {
	if !r.writeMu.TryLock() {
		return errBusy
	}
	b, err := r.beginUpload(f.SHA256(), f.Size())
	if err != nil {
		r.writeMu.Unlock()
		r.sources.failed(q.source) // it may describe a bundle that no machine accepts
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	started := make(chan error, 2) // nil once the upgrade has started, then its error
	go r.fetch(i, f, b, q, started)
	select {
	case err := <-started:
		if err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// fetch receives the missing bytes of a bundle and installs it.
func (r *Receiver) fetch(i Installer, f bundleSource, b Bundle, q *question, started chan<- error) {
	ctx, cancel := context.WithCancel(r.deps.Running)
	defer cancel() // the connection
	err := panics.Do("fetching a bundle", func() error {
		return r.receive(i, b, f.Reader(ctx, b.Have), q, func() { started <- nil })
	})
	if err != nil {
		q.end() // it may have panicked
		r.writeMu.Unlock()
		started <- err
		return
	}
	r.install(i, q)
}
