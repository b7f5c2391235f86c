package membership

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/trust"
)

// How a removed worker stops its pods and its node (recordRemoved). Its pods are created again on
// other machines, so its own pods stop in order. Its node stops too, because the node would
// continue to call an API server that rejects it. The worker retains its data, its configuration
// and its API, and continues with them after it joins again (docs/decisions/0062-removal.md).

// removalGracePeriod is the time for the pods of a removed worker to stop, as at a shutdown.
const removalGracePeriod = 60 * time.Second

// RunRemoval stops pods and node whenever recordRemoved has recorded the removal of the machine.
func (w *Worker) RunRemoval(ctx context.Context) {
	for states := w.State.Watch(); ; {
		s, _, err := states.Next(ctx)
		if err != nil {
			return
		}
		if !s.Removed || s.PodsStopped {
			continue
		}
		w.deps.Event("membership", "operation", "stopping its pods and its node: "+s.Problem)
		ending, cancel := context.WithTimeout(ctx, removalGracePeriod)
		err = w.deps.Removal.StopPods(ending)
		cancel()
		// report the error only: the remaining pods have no kubelet and no API server any more
		if err != nil && !errors.Is(err, context.Canceled) {
			w.deps.Event("membership", "failure", "cannot stop all pods: "+err.Error())
		}
		// Remove the objects with which the pods would start again, including Secrets.
		if err := os.RemoveAll(w.deps.Files.OfflineAPI); err != nil {
			w.deps.Event("membership", "failure", err.Error())
		}
		w.State.Update(func(now State) State {
			now.PodsStopped = now.Removed && now.Certs.Machine == s.Certs.Machine
			return now
		})
		if now, _ := w.State.Get(); now.PodsStopped && wipesOnRemoval(w.deps.config()) {
			if err := w.deps.Removal.Wipe(ctx); err != nil {
				w.deps.Event("membership", "failure", "cannot erase the machine after its removal: "+err.Error())
			}
		}
	}
}

// wipesOnRemoval reports whether a configuration requests that the machine is erased after its
// removal. It returns false for nil.
func wipesOnRemoval(c *config.Config) bool {
	return c != nil && c.Machine.Spec.Join != nil && c.Machine.Spec.Join.OnRemoval == config.RemovalWipe
}

// clearRemoved records that this worker is not removed, because all control-plane machines have
// accepted its certificates.
func (w *Worker) clearRemoved() {
	w.State.Update(func(s State) State {
		if s.Removed {
			s.Removed, s.PodsStopped, s.Problem = false, false, ""
		}
		return s
	})
}

// recordRemoved records that a control-plane machine has rejected a certificate of this worker as
// revoked, in a call over an existing connection or at the next dial. A rejection of earlier
// certificates has no effect: the worker may have joined again meanwhile.
func (w *Worker) recordRemoved(refused error) {
	// A server that has not proved its identity can put any text into its certificates, and so into
	// the error about them.
	if refused == nil || errors.Is(refused, client.ErrUntrusted) || errors.Is(refused, client.ErrUnreachable) ||
		!errors.Is(refused, client.ErrRevoked) && !strings.Contains(refused.Error(), trust.RevokedPrefix) {
		return
	}
	var call failedCall
	_ = errors.As(refused, &call) // for any other error, the certificate is unknown
	w.State.Update(func(s State) State {
		if held := s.Certs.Machine; held != nil && len(call.cert) > 0 && !bytes.Equal(call.cert, held.Cert.Raw) {
			return s
		}
		if !s.Removed {
			s.Removed, s.Problem = true, "this machine was removed from the cluster: "+refused.Error()
		}
		return s
	})
}
