package localvolumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// A failed copy is retried after cooldownFactor times its duration, and after minCooldown at least:
// so repeated failures use the disk for at most a tenth of the time.
const (
	cooldownFactor = 9
	minCooldown    = time.Minute
)

// copying is the state of a node's current copy and of its failed copies. The zero value is ready.
type copying struct {
	mu      sync.Mutex
	name    string // of the current copy, or empty
	stop    context.CancelFunc
	failed  map[string]setback
	running sync.WaitGroup // the copy in progress
}

// setback is the error of a failed copy, and the time of its retry.
type setback struct {
	why   string
	until time.Time
}

// prune stops the current copy if it is not wanted any more, and drops failed copies after their
// cooldown: a copy that is not wanted now may be wanted again before that.
func (c *copying) prune(wanted func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.name != "" && !wanted(c.name) {
		c.stop()
	}
	maps.DeleteFunc(c.failed, func(_ string, f setback) bool { return !time.Now().Before(f.until) })
}

// busy returns the name of the current copy, and the error of the named copy during its cooldown.
func (c *copying) busy(name string) (now, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, failed := c.failed[name]; failed && time.Now().Before(f.until) {
		return c.name, f.why
	}
	return c.name, ""
}

// start makes a copy in the background.
func (c *copying) start(ctx context.Context, name string, do func(context.Context) error, ended func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, stop := context.WithCancel(ctx)
	c.name, c.stop = name, stop
	c.running.Go(func() {
		began := time.Now()
		err := do(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			rest := max(minCooldown, cooldownFactor*time.Since(began))
			if c.failed == nil {
				c.failed = map[string]setback{}
			}
			c.failed[name] = setback{err.Error(), time.Now().Add(rest)}
			time.AfterFunc(rest, ended)
		} else {
			delete(c.failed, name)
		}
		stop()
		c.name = ""
		ended()
	})
}

// copy begins the first possible copy, unless a copy is in progress, and reports on all. It lists
// the pods at most once, for all waiting copies.
func (n *node) copy(ctx context.Context, copies []Copy, report *Report) error {
	report.Created, report.Waits = map[string]int64{}, map[string]string{}
	waits := func(c Copy, why string) { report.Waits[c.Name] = short(why) }
	pods := sync.OnceValue(func() map[string]string { return n.podNames(ctx) })
	var problems []error
	for _, c := range copies {
		since, whole, err := n.store.whole(c.Name)
		now, why := n.copying.busy(c.Name)
		var used inUse
		var wait errWait
		switch {
		case err != nil:
			problems = append(problems, err)
			waits(c, err.Error())
			continue
		case whole:
			report.Created[c.Name] = since
			continue
		case now == c.Name: // in progress
			continue
		case why != "":
			waits(c, "its copy failed and will be retried: "+why)
			continue
		case now != "":
			// without its name, which may belong to another tenant
			waits(c, "its copy waits for another copy")
			continue
		}
		j, err := n.store.reserve(c)
		switch {
		case err == nil:
			n.copying.start(ctx, c.Name, func(ctx context.Context) error {
				size, err := n.store.work(ctx, j)
				return n.store.finish(j, size, err)
			}, n.changed.Wake)
		case errors.As(err, &used):
			waits(c, fmt.Sprintf("volume %s is used by %s: it is copied when it is no longer in use", used.volume, users(used.places, pods())))
		case errors.As(err, &wait):
			waits(c, err.Error())
		default:
			problems = append(problems, err)
			waits(c, err.Error())
		}
	}
	report.Copying, _ = n.copying.busy("")
	return errors.Join(problems...)
}

// podDir matches the kubelet's directory of a pod, which contains the mount points of its volumes.
var podDir = regexp.MustCompile(`/pods/([0-9a-f-]{36})/`)

// podNames returns the names of the node's pods by UID, or nil after a failure.
func (n *node) podNames(ctx context.Context) map[string]string {
	if n.pods == nil {
		return nil
	}
	asking, done := context.WithTimeout(ctx, timeout)
	defer done()
	names, err := n.pods(asking)
	if err != nil {
		return nil // the message contains UIDs instead
	}
	return names
}

// users returns the users of a volume with the given mount points: pods' names if known, otherwise
// their UIDs.
func users(places []string, names map[string]string) string {
	var users []string
	for _, p := range places {
		user := "a mount at " + p
		if m := podDir.FindStringSubmatch(p); m != nil {
			user = "pod " + m[1]
			if name := names[m[1]]; name != "" {
				user = "pod " + name
			}
		}
		users = append(users, user)
	}
	slices.Sort(users)
	return strings.Join(slices.Compact(users), " and ")
}

// podsOf lists the pods of a node, which the kubelet's identity may do.
func podsOf(ctx context.Context, api kubernetes.Interface, node string) (map[string]string, error) {
	list, err := api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), ResourceVersion: "0",
	})
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, p := range list.Items {
		names[string(p.UID)] = p.Namespace + "/" + p.Name
	}
	return names, nil
}
