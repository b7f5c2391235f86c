package early

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/layout"
)

// nodeController is the service account of upstream's controller that looks after Nodes; it may delete them.
const nodeController = "node-controller"

// ForgetNode deletes a Node, so that Kubernetes takes its pods for gone and makes others of them. A Node that is not there is forgotten.
// It works beside the process of the controllers, with whose identity it begins.
func ForgetNode(ctx context.Context, dirs layout.Dirs, name string) error {
	rights := func(context.Context) error { return nil } // a refusal is an answer here
	who, err := begin(ctx, Namespaces, dirs, rights, component.Announce(func(string, bool, string) {}))
	if err != nil {
		return err
	}
	client := who.of(ctx, nodeController)
	if client == nil {
		return fmt.Errorf("Node %s: cannot be deleted: the API server does not answer: %w", name, context.Cause(ctx))
	}
	// Until the API server has seen that its certificate counts no more, the node may make its Node anew.
	tick := time.NewTicker(settled)
	defer tick.Stop()
	for range 3 {
		if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("Node %s: cannot be deleted: %w", name, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("Node %s: nobody knows whether it is made anew: %w", name, context.Cause(ctx))
		}
	}
	return nil
}

// settled is how often it is looked whether the Node is there again; the API server looks each second at what is revoked.
const settled = time.Second
