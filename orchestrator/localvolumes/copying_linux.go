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

// A copy that failed is made anew after as many times as long as it took, and after leastRest at
// least: whatever fails again and again has the disk for a tenth of the time.
const (
	restTimes = 9
	leastRest = time.Minute
)

// copying is the copy that a node makes at the moment, and those that failed. The zero value is
// ready.
type copying struct {
	mu      sync.Mutex
	name    string // empty: none
	stop    context.CancelFunc
	failed  map[string]setback
	running sync.WaitGroup // until no copy is made any more
}

// setback is why a copy failed, and until when it is not made anew.
type setback struct {
	why   string
	until time.Time
}

// keep stops the copy that is being made unless it is wanted still, and forgets those that failed
// when they have rested: one that is not wanted now may have its turn again before that.
func (c *copying) keep(wanted func(name string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.name != "" && !wanted(c.name) {
		c.stop()
	}
	maps.DeleteFunc(c.failed, func(_ string, f setback) bool { return !time.Now().Before(f.until) })
}

// busy says what is copied at the moment, and why a copy is not to be made yet.
func (c *copying) busy(name string) (now, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, failed := c.failed[name]; failed && time.Now().Before(f.until) {
		return c.name, f.why
	}
	return c.name, ""
}

// start makes a copy beside everything else.
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
			rest := max(leastRest, restTimes*time.Since(began))
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

// copy begins the first copy that can be made, unless one is being made, and reports on all.
// However many wait for pods, these are asked for once.
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
		case now == c.Name: // nothing is to be said against it
			continue
		case why != "":
			waits(c, "its copy failed, and is made anew in a while: "+why)
			continue
		case now != "":
			waits(c, "its copy waits for another one") // which may be another tenant's
			continue
		}
		j, err := n.store.reserve(c)
		switch {
		case err == nil:
			n.copying.start(ctx, c.Name, func(ctx context.Context) error {
				size, err := n.store.work(ctx, j)
				return n.store.finish(j, size, err)
			}, n.change)
		case errors.As(err, &used):
			waits(c, fmt.Sprintf("volume %s is used by %s: it is copied when nobody uses it", used.volume, users(used.places, pods())))
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

// podFolder is what the kubelet's folder of a pod looks like, in which it mounts volumes.
var podFolder = regexp.MustCompile(`/pods/([0-9a-f-]{36})/`)

// podNames are the names of the node's pods by UID, as far as they can be had.
func (n *node) podNames(ctx context.Context) map[string]string {
	if n.pods == nil {
		return nil
	}
	asking, done := context.WithTimeout(ctx, patience)
	defer done()
	names, err := n.pods(asking)
	if err != nil {
		return nil // UIDs are told instead
	}
	return names
}

// users says by whom a volume is used that is mounted at some places: pods' names where they are
// known, their UIDs otherwise.
func users(places []string, names map[string]string) string {
	var users []string
	for _, p := range places {
		user := "what is mounted at " + p
		if m := podFolder.FindStringSubmatch(p); m != nil {
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

// podsOf asks for the pods of a node, which its kubelet's identity may see.
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
