package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// A pod's token contains the name and UID of its Node. Kubernetes only checks that the pod exists,
// and caches the result for ten seconds. The pods of a removed machine exist for up to a minute,
// and the machine still has their tokens. So this file makes a token valid only while its Node
// exists.
//
// The Node is deleted when the machine is removed (orchestrator/nodecontrollers/nodegc.go). A Node
// with a different UID belongs to another machine that now has the name. Without a quorum of etcd,
// Nodes cannot be deleted. So the name is first checked against the list of revocations, which
// needs no quorum. The list contains the name until another machine has it.

// nodeTimeout bounds the request for a Node that the cache does not have.
const nodeTimeout = 5 * time.Second

// node is the Node that a token names. An empty name means that the token names no Node.
type node struct {
	name string
	uid  types.UID // empty: the Node did not exist when the token was issued
}

// matches reports whether a Node of this name and the given UID is the Node of the token.
func (n node) matches(uid types.UID) bool { return n.uid == "" || n.uid == uid }

// nodeOf returns the Node in the token of an authenticated caller.
func nodeOf(caller user.Info) node {
	if caller == nil {
		return node{}
	}
	if _, _, err := serviceaccount.SplitUsername(caller.GetName()); err != nil {
		return node{}
	}
	said := func(key string) string {
		if all := caller.GetExtra()[key]; len(all) > 0 {
			return all[0]
		}
		return ""
	}
	return node{said(serviceaccount.NodeNameKey), types.UID(said(serviceaccount.NodeUIDKey))}
}

// nodes looks up Nodes, in the cache (known) and in storage (get).
type nodes interface {
	known(name string) (types.UID, bool)
	get(ctx context.Context, name string) (types.UID, error)
}

// serverNodes looks up Nodes in the server's own informer and in its storage.
type serverNodes struct {
	client kubernetes.Interface
	nodes  coreinformers.NodeInformer
}

func (s serverNodes) known(name string) (types.UID, bool) {
	n, err := s.nodes.Lister().Get(name)
	if err != nil {
		return "", false
	}
	return n.UID, true
}

func (s serverNodes) get(ctx context.Context, name string) (types.UID, error) {
	n, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return n.UID, nil
}

// watchNodes gives r access to the Nodes, and ends the requests of pods of a deleted Node.
func (r *revocations) watchNodes(client kubernetes.Interface, informer coreinformers.NodeInformer) error {
	r.nodes = serverNodes{client, informer}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		// a deletion and a creation in quick succession can arrive as a single update
		UpdateFunc: func(before, after any) {
			was, known := before.(*corev1.Node)
			if is, ok := after.(*corev1.Node); ok && known && was.UID != is.UID {
				r.nodeDeleted(was)
			}
		},
		DeleteFunc: func(object any) {
			if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			if n, ok := object.(*corev1.Node); ok {
				r.nodeDeleted(n)
			}
		},
	})
	return err
}

// nodeDeleted ends the requests of the pods of a deleted Node.
func (r *revocations) nodeDeleted(n *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.active {
		if g.on.name == n.Name && g.on.matches(n.UID) {
			g.end(errNodeDeleted(n.Name))
		}
	}
}

func errRemoved(name string) error {
	return fmt.Errorf("token: its machine %s was removed from the cluster", name)
}

func errNodeDeleted(name string) error {
	return fmt.Errorf("token: its Node %s was deleted, so the token is invalid", name)
}

// activeRequestKey is the context key of the activeRequest.
type activeRequestKey struct{}

// checkNode returns nil if the token names no Node or an existing Node. It records the Node in the
// request's activeRequest before the check, so that a later deletion of the Node ends the request
// (nodeDeleted).
func (r *revocations) checkNode(ctx context.Context, on node) error {
	if on.name == "" {
		return nil
	}
	r.mu.Lock()
	if g, ok := ctx.Value(activeRequestKey{}).(*activeRequest); ok {
		g.on = on
	}
	removed := r.removed[on.name]
	r.mu.Unlock()
	if removed {
		return errRemoved(on.name)
	}
	if r.nodes == nil {
		return errors.New("token: the Nodes are not known yet")
	}
	if uid, there := r.nodes.known(on.name); there && on.matches(uid) {
		return nil
	}
	// The Node may be new, or the server has just started.
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	uid, err := r.nodes.get(ctx, on.name)
	switch {
	case apierrors.IsNotFound(err), err == nil && !on.matches(uid):
		return errNodeDeleted(on.name)
	case err != nil:
		return fmt.Errorf("token: cannot look up its Node %s: %w", on.name, err)
	}
	return nil
}
