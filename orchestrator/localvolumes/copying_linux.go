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

// A failed copy is retried after cooldownFactor times its duration, but not before minCooldown.
// Copies that fail repeatedly therefore use the disk for at most a tenth of the time.
const (
	cooldownFactor = 9
	minCooldown    = time.Minute
)

// copying is the state of the copies of a pool: the copy in progress, and the failed copies in
// their cooldown. The zero value has none.
type copying struct {
	mu      sync.Mutex
	name    string // name of the copy in progress, or empty
	stop    context.CancelFunc
	failed  map[string]setback
	running sync.WaitGroup // ends with the copy in progress
}

// setback is the error of a failed copy, and the time from which the copy can be retried.
type setback struct {
	why   string
	until time.Time
}

// prune stops the copy in progress if it is not wanted any more. It also drops failed copies after
// the end of their cooldown. It retains the other failed copies even if they are not wanted now,
// because the controller may request them again.
func (c *copying) prune(wanted func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.name != "" && !wanted(c.name) {
		c.stop()
	}
	maps.DeleteFunc(c.failed, func(_ string, f setback) bool { return !time.Now().Before(f.until) })
}

// busy returns the name of the copy in progress, or "", and the error of the named copy while it is
// in its cooldown, or "".
func (c *copying) busy(name string) (now, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, failed := c.failed[name]; failed && time.Now().Before(f.until) {
		return c.name, f.why
	}
	return c.name, ""
}

// start runs a copy in the background. It calls ended when the copy has ended, and again after the
// cooldown of a failed copy.
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

// copy begins the first copy that can begin, if no copy is in progress. It adds the state of all
// copies to the report. If a copy waits for pods, copy lists the pods of the node once for all
// copies.
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
		case now == c.Name: // the copy is in progress
			continue
		case why != "":
			waits(c, "its copy failed and will be retried: "+why)
			continue
		case now != "":
			// The reason does not name the copy in progress, because that may belong to another
			// tenant.
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

// podDir matches the directory of a pod in a mount point. The kubelet mounts the volumes of a pod
// below this directory.
var podDir = regexp.MustCompile(`/pods/([0-9a-f-]{36})/`)

// podNames returns namespace/name of each pod of the node, by UID. It returns nil if the pods
// cannot be listed.
func (n *node) podNames(ctx context.Context) map[string]string {
	if n.pods == nil {
		return nil
	}
	asking, done := context.WithTimeout(ctx, timeout)
	defer done()
	names, err := n.pods(asking)
	if err != nil {
		return nil // the messages then contain UIDs
	}
	return names
}

// users returns a text that names the users of a volume with these mount points: the names of pods,
// or their UIDs if the names are not known.
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

// podsOf returns namespace/name of each pod of a node, by UID. The identity of the kubelet has the
// right to list them.
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
