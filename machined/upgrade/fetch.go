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

// findTimeout is the longest time to find a bundle in a registry or at a peer. A peer reads the
// whole bundle before it answers.
const findTimeout = 5 * time.Minute

// bundleSource is a bundle in a registry or at a peer.
type bundleSource interface {
	SHA256() string // lower-case hexadecimal
	Size() int64    // bytes
	// Reader returns a reader of the bundle that starts at an offset (at). Reads fail after the end
	// of ctx.
	Reader(ctx context.Context, at int64) io.Reader
}

// find returns the source of the bundle that a request names.
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

// Fetch fetches a bundle for the caller by. It returns when the upgrade has started; the rest of
// the transfer and the installation continue in a goroutine.
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

// start fetches and installs the bundle of a source. It returns nil when the upgrade has started.
func (r *Receiver) start(ctx context.Context, i Installer, f bundleSource, q *disruptionRequest) error {
	if !r.writeMu.TryLock() {
		return errBusy
	}
	b, err := r.beginUpload(f.SHA256(), f.Size())
	if err != nil {
		r.writeMu.Unlock()
		r.sources.failed(q.source) // the source may describe a bundle that no machine accepts
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	// started receives nil when the upgrade has started, and an error when the transfer fails.
	started := make(chan error, 2)
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

// fetch receives the missing bytes of a bundle and installs it. It sends the start or the failure
// of the upgrade on the channel started.
func (r *Receiver) fetch(i Installer, f bundleSource, b Bundle, q *disruptionRequest, started chan<- error) {
	ctx, cancel := context.WithCancel(r.deps.Running)
	defer cancel() // closes the connection
	err := panics.Do("fetching a bundle", func() error {
		return r.receive(i, b, f.Reader(ctx, b.Have), q, func() { started <- nil })
	})
	if err != nil {
		q.end() // after a panic, receive has not returned the turn
		r.writeMu.Unlock()
		started <- err
		return
	}
	r.install(i, q)
}
