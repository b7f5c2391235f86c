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

// A pod's token says on which Node the pod is, by name and UID. Kubernetes looks only whether the
// pod is there, and remembers for ten seconds that it was. The pods of a machine that was removed
// are there for up to a minute, and whoever has the machine has their tokens. So a token counts
// only as long as its Node is there, which goes when the machine is removed
// (orchestrator/nodecontrollers/nodegc.go); one of another UID is another machine's, which has the name by
// now. Without a quorum of etcd no Node goes: so the list of what was revoked, which does not need
// it, is asked about the name first. There it stands as long as nobody has it again.

// nodeTime bounds asking for a Node that is not known here.
const nodeTime = 5 * time.Second

// node is the one that a token names; without a name there is none.
type node struct {
	name string
	uid  types.UID // empty: it was not there when the token was issued
}

// is tells whether a Node of this name is the one.
func (n node) is(uid types.UID) bool { return n.uid == "" || n.uid == uid }

// nodeOf is the Node that the token of an authenticated caller names.
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

// nodes are those that are there, as this server knows them and as it finds them when it asks.
type nodes interface {
	known(name string) (types.UID, bool)
	ask(ctx context.Context, name string) (types.UID, error)
}

// served are the nodes of the server itself.
type served struct {
	client kubernetes.Interface
	nodes  coreinformers.NodeInformer
}

func (s served) known(name string) (types.UID, bool) {
	n, err := s.nodes.Lister().Get(name)
	if err != nil {
		return "", false
	}
	return n.UID, true
}

func (s served) ask(ctx context.Context, name string) (types.UID, error) {
	n, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return n.UID, nil
}

// follows has the guard know the Nodes, and ends the requests of pods whose Node goes.
func (r *revocations) follows(client kubernetes.Interface, informer coreinformers.NodeInformer) error {
	r.nodes = served{client, informer}
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		// one that went and one that came look so to who has missed a moment
		UpdateFunc: func(before, after any) {
			was, known := before.(*corev1.Node)
			if is, ok := after.(*corev1.Node); ok && known && was.UID != is.UID {
				r.left(was)
			}
		},
		DeleteFunc: func(object any) {
			if missed, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			if n, ok := object.(*corev1.Node); ok {
				r.left(n)
			}
		},
	})
	return err
}

// left ends the requests of the pods of a Node that is gone.
func (r *revocations) left(n *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g := range r.going {
		if g.on.name == n.Name && g.on.is(n.UID) {
			g.end(errGone(n.Name))
		}
	}
}

func errOut(name string) error {
	return fmt.Errorf("token: the machine %s that it was issued for was taken out of the cluster", name)
}

func errGone(name string) error {
	return fmt.Errorf("token: the Node %s that it was issued for is gone, and it counts no more", name)
}

// goingKey is where a request's context has its going.
type goingKey struct{}

// present is nil if the Node is there that the caller's token names, or names none. Of a request
// that goes on it notes the Node, before it looks: one that goes after that ends it (left).
func (r *revocations) present(ctx context.Context, on node) error {
	if on.name == "" {
		return nil
	}
	r.mu.Lock()
	if g, ok := ctx.Value(goingKey{}).(*going); ok {
		g.on = on
	}
	out := r.out[on.name]
	r.mu.Unlock()
	if out {
		return errOut(on.name)
	}
	if r.nodes == nil {
		return errors.New("token: the Nodes are not known yet")
	}
	if uid, there := r.nodes.known(on.name); there && on.is(uid) {
		return nil
	}
	// It may have been made a moment ago, or the server has just started.
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	uid, err := r.nodes.ask(ctx, on.name)
	switch {
	case apierrors.IsNotFound(err), err == nil && !on.is(uid):
		return errGone(on.name)
	case err != nil:
		return fmt.Errorf("token: whether its Node %s is there cannot be found out: %w", on.name, err)
	}
	return nil
}
