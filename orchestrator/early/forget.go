package early

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/layout"
)

// nodeController is the service account of upstream's controller that looks after Nodes; it may delete them.
const nodeController = "node-controller"

// ForgetNodes deletes Nodes, so that Kubernetes takes their pods for gone and makes others of them, and returns which were there. A Node that
// is not there is forgotten. It works beside the process of the controllers, with whose identity it begins.
func ForgetNodes(ctx context.Context, dirs layout.Dirs, names []string) ([]string, error) {
	rights := func(context.Context) error { return nil } // a refusal is an answer here
	who, err := begin(ctx, Namespaces, dirs, rights, component.Announce(func(string, bool, string) {}))
	if err != nil {
		return nil, err
	}
	client := who.of(ctx, nodeController)
	if client == nil {
		return nil, fmt.Errorf("Nodes: cannot be deleted: the API server does not answer: %w", context.Cause(ctx))
	}
	return forgetNodes(ctx, client, names, settled)
}

// forgetNodes looks again for what was there: until the API server has seen that its certificate counts no more, the node may make its Node
// anew. One that does so without end is for who looks next.
func forgetNodes(ctx context.Context, client kubernetes.Interface, names []string, every time.Duration) (there []string, err error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failed []error
	look := names
	for range 3 {
		var was []string
		for _, name := range look {
			switch err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); {
			case err == nil:
				was = append(was, name)
			case !apierrors.IsNotFound(err):
				failed = append(failed, fmt.Errorf("Node %s: cannot be deleted: %w", name, err))
			}
		}
		for _, name := range was {
			if !slices.Contains(there, name) {
				there = append(there, name)
			}
		}
		if look = was; len(look) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return there, fmt.Errorf("Nodes %v: nobody knows whether they are made anew: %w", look, context.Cause(ctx))
		}
	}
	return there, errors.Join(failed...)
}

// settled is how often it is looked whether a Node is there again; the API server looks each second at what is revoked.
const settled = time.Second
