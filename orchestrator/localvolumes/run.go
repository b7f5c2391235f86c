package localvolumes

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the controller's component.
const Name = "local-volumes"

// pollInterval is the time between two checks whether the API server defines the kinds of
// snapshots. retryInterval is the delay before the next pass after a failure. timeout is the
// deadline of a request.
//
// selectionPeriod is the time in which Step makes the same selection from a list that is too long
// for a request. The next period has another selection (Input.Period).
const (
	pollInterval    = 250 * time.Millisecond
	retryInterval   = 2 * time.Second
	timeout         = 10 * time.Second
	selectionPeriod = time.Minute
)

// Controllers returns the component of the controller, to which the caller adds Run. The list is
// empty if the configuration disables local volumes.
func Controllers(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if spec.LocalVolumes.Disabled {
		return nil
	}
	return []component.Component{kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)}
}

// Run runs the controller until ctx is done. It fails if a client or an informer cannot be set up.
func Run(ctx context.Context, env component.Env) error {
	own, acting, err := nodecontrollers.ControllerConfigs(ctx, env, Name, bootstrap.LocalVolumesAccount)
	if own == nil {
		return err
	}
	reads, err := clientsOf(own)
	if err != nil {
		return err
	}
	writes, err := clientsOf(acting)
	if err != nil {
		return err
	}
	if !served(ctx, reads, func(detail string) { env.Announce(Name, false, detail) }) {
		return nil // stopped
	}
	events, stop := component.Recorder(ctx, writes, Name)
	defer stop()
	c, err := newController(env.Spec.LocalVolumes.Reserve, env.Nodes, reads, writes, events)
	if err != nil {
		return err
	}
	return c.run(ctx, env.AnnounceReady(Name))
}

// clients are the clients of one identity: for the kinds of Kubernetes, and for the kinds of
// snapshots.
type clients struct {
	kubernetes.Interface
	snapshots versioned.Interface
}

func clientsOf(config *rest.Config) (c clients, err error) {
	if c.Interface, err = component.NewClient(config); err != nil {
		return c, err
	}
	if c.snapshots, err = versioned.NewForConfig(config); err != nil {
		return c, fmt.Errorf("cannot make client: %w", err)
	}
	return c, nil
}

// served waits until the API server defines the kinds of snapshots, which package bootstrap
// creates. The controller needs the sizes of all snapshots before it can promise space to volumes.
// served returns false if ctx is done first.
func served(ctx context.Context, c clients, tell func(detail string)) bool {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for told := ""; ; {
		_, err := c.Discovery().ServerResourcesForGroupVersion(snapshotv1.SchemeGroupVersion.String())
		if err == nil {
			return true
		}
		if why := fmt.Sprintf("waiting for the definitions of %s: %v", snapshotv1.SchemeGroupVersion, err); why != told {
			told = why
			tell(why)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
}

// promise identifies an object to which the controller has promised space.
type promise struct {
	content bool // true: a VolumeSnapshotContent; false: a PersistentVolume
	name    string
}

// controller performs the changes of Step. It runs one pass at a time, and each pass sees the
// promises of all previous passes.
type controller struct {
	reserve   int64
	client    kubernetes.Interface
	snapshots versioned.Interface
	events    record.EventRecorder
	factories []component.Factory
	caches
	changed cell.Signal
	// promised maps each written object to its resource version before the write, which is empty
	// for a new object. A cache that still has this version may be stale (the method behind).
	promised map[promise]string
	reported map[types.UID]string // the last message of an Event, by the UID of the claim
}

// caches are the informers of the watched objects.
type caches struct {
	claims          cache.SharedIndexInformer
	volumes         cache.SharedIndexInformer
	classes         cache.SharedIndexInformer
	nodes           cache.SharedIndexInformer
	capacities      cache.SharedIndexInformer
	snapshotClasses cache.SharedIndexInformer // VolumeSnapshotClasses
	volumeSnapshots cache.SharedIndexInformer // VolumeSnapshots
	contents        cache.SharedIndexInformer // VolumeSnapshotContents
}

func newController(reserve int64, nodes *component.Nodes, own, acting clients, events record.EventRecorder) (*controller, error) {
	allNodes, err := nodes.Informer()
	if err != nil {
		return nil, err
	}
	all := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(trim))
	system := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(trim), informers.WithNamespace(metav1.NamespaceSystem))
	snapshots := externalversions.NewSharedInformerFactoryWithOptions(own.snapshots, 0, externalversions.WithTransform(trim))
	kept := snapshots.Snapshot().V1()
	return &controller{
		reserve: reserve, client: acting, snapshots: acting.snapshots, events: events, factories: []component.Factory{all, system, snapshots, nodes},
		caches: caches{
			snapshotClasses: kept.VolumeSnapshotClasses().Informer(), volumeSnapshots: kept.VolumeSnapshots().Informer(), contents: kept.VolumeSnapshotContents().Informer(),
			claims: all.Core().V1().PersistentVolumeClaims().Informer(), volumes: all.Core().V1().PersistentVolumes().Informer(),
			classes: all.Storage().V1().StorageClasses().Informer(), nodes: allNodes,
			capacities: system.Storage().V1().CSIStorageCapacities().Informer(),
		},
		changed: cell.NewSignal(), promised: map[promise]string{}, reported: map[types.UID]string{},
	}, nil
}

// trim removes large fields that this package does not read.
func trim(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return object, nil
}

func (c *controller) run(ctx context.Context, tell func(detail string)) error {
	// The kubelet updates its Node often, so changes of fields that Step does not use trigger no
	// pass.
	watched := []component.Watched{{Informer: c.nodes, Same: func(before, now any) bool {
		return sameNodes(readNodes(before), readNodes(now))
	}}}
	for _, informer := range []cache.SharedIndexInformer{
		c.claims, c.volumes, c.classes, c.capacities, c.snapshotClasses, c.volumeSnapshots, c.contents,
	} {
		watched = append(watched, component.Watched{Informer: informer})
	}
	return component.Reconciler{
		Changed: c.changed, Factories: c.factories, Watched: watched,
		Period: selectionPeriod, RetryInterval: retryInterval, Pass: c.pass, Report: tell,
	}.Run(ctx)
}

// pass runs Step once on the caches and performs its changes. It returns the status text of the
// component. It returns "" if a cache does not contain the last promises yet; the next update of
// the cache then triggers the next pass. A change that fails does not block the other changes, and
// pass returns the first error.
func (c *controller) pass(ctx context.Context) (string, error) {
	behind, err := c.behind(ctx)
	if behind || err != nil {
		return "", err
	}
	world, objects := c.input()
	ops := Step(world)
	quiet := map[types.UID]bool{} // reported claims that have no message in this pass
	for uid := range c.reported {
		quiet[uid] = true
	}
	var first error
	for _, op := range ops {
		if key, reason, why := message(op); key != "" {
			claim := objects.claims[key]
			delete(quiet, claim.UID)
			if c.reported[claim.UID] != why {
				c.reported[claim.UID] = why
				c.events.Event(claim, corev1.EventTypeWarning, reason, why)
			}
			continue
		}
		doing, done := context.WithTimeout(ctx, timeout)
		err := c.do(doing, objects, op)
		done()
		// A conflict is no error: a newer version of the object is about to arrive and triggers a
		// pass.
		if err != nil && !apierrors.IsConflict(err) && first == nil {
			first = fmt.Errorf("cannot %s: %w", op, err)
		}
	}
	for uid := range quiet {
		delete(c.reported, uid)
	}
	able, all := 0, 0
	for _, n := range world.Nodes {
		if n.Pool != "" {
			continue
		}
		if all++; n.Report.Problem == "" {
			able++
		}
	}
	return fmt.Sprintf("%d volumes, %d snapshots; %d of %d nodes can have them", len(world.Volumes), len(world.Contents), able, all), first
}

// message returns the key of the claim, the reason and the text of the Event for an operation. The
// key is empty if the operation is no message to a claim.
func message(op Op) (key, reason, why string) {
	switch o := op.(type) {
	case Refuse:
		return o.Claim, "LocalVolumeRefused", o.Why
	case Delay:
		return o.Claim, "LocalVolumeNotFilled", o.Why
	}
	return "", "", ""
}

// behind reports whether a cache lacks a promise. With such a cache, Step could promise the same
// space twice. behind returns an error if it cannot read an object from the API server.
func (c *controller) behind(ctx context.Context) (bool, error) {
	for what, version := range c.promised {
		store := c.volumes.GetStore()
		if what.content {
			store = c.contents.GetStore()
		}
		cached := ""
		if object, found, err := store.GetByKey(what.name); err != nil {
			return false, err
		} else if o, ok := object.(metav1.Object); found && ok {
			cached = o.GetResourceVersion()
		}
		// The cache still has the version from before the write. The cache is stale only if the API
		// server has another version now. If not, the API server has rejected the write, or the
		// object is deleted already.
		if cached == version {
			asking, done := context.WithTimeout(ctx, timeout)
			have, err := c.get(asking, what)
			done()
			if err != nil && !apierrors.IsNotFound(err) {
				return true, fmt.Errorf("%s: cannot be read: %w", what.name, err)
			}
			if err == nil && have.GetResourceVersion() != version {
				return true, nil
			}
		}
		delete(c.promised, what)
	}
	return false, nil
}

// get reads a promised object from the API server.
func (c *controller) get(ctx context.Context, what promise) (metav1.Object, error) {
	if what.content {
		return c.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx, what.name, metav1.GetOptions{})
	}
	return c.client.CoreV1().PersistentVolumes().Get(ctx, what.name, metav1.GetOptions{})
}

// objects are the API objects of the input, by name or by namespace/name.
type objects struct {
	claims     map[string]*corev1.PersistentVolumeClaim
	volumes    map[string]*corev1.PersistentVolume
	classes    map[string]*storagev1.StorageClass
	capacities map[string]*storagev1.CSIStorageCapacity
	snapshots  map[string]*snapshotv1.VolumeSnapshot
	contents   map[string]*snapshotv1.VolumeSnapshotContent
}

// input returns the input of Step from the caches, and the API objects of the input.
func (c *controller) input() (Input, objects) {
	w := Input{Reserve: c.reserve, Period: time.Now().Unix() / int64(selectionPeriod/time.Second)}
	all := objects{
		claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
		classes: map[string]*storagev1.StorageClass{}, capacities: map[string]*storagev1.CSIStorageCapacity{},
		snapshots: map[string]*snapshotv1.VolumeSnapshot{}, contents: map[string]*snapshotv1.VolumeSnapshotContent{},
	}
	for _, o := range c.nodes.GetStore().List() {
		w.Nodes = append(w.Nodes, readNodes(o)...)
	}
	for _, o := range c.classes.GetStore().List() {
		if class, ok := o.(*storagev1.StorageClass); ok && class.Provisioner == Driver {
			all.classes[class.Name] = class
			w.Classes = append(w.Classes, readClass(class))
		}
	}
	for _, o := range c.volumes.GetStore().List() {
		if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.CSI != nil && v.Spec.CSI.Driver == Driver {
			all.volumes[v.Name] = v
			w.Volumes = append(w.Volumes, readVolume(v))
		}
	}
	for _, o := range c.claims.GetStore().List() {
		claim, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		read := readClaim(claim)
		if all.classes[read.Class] != nil || all.volumes[read.Volume] != nil {
			all.claims[read.Key] = claim
			w.Claims = append(w.Claims, read)
		}
	}
	for _, o := range c.capacities.GetStore().List() {
		if capacity, ok := o.(*storagev1.CSIStorageCapacity); ok && ownCapacity(capacity) {
			all.capacities[capacity.Name] = capacity
			w.Capacities = append(w.Capacities, readCapacity(capacity))
		}
	}
	c.snapshotInput(&w, all)
	return w, all
}

// snapshotInput adds the snapshot objects from the caches to the input and to the API objects. It
// omits objects of other drivers.
func (c *controller) snapshotInput(w *Input, all objects) {
	for _, o := range c.snapshotClasses.GetStore().List() {
		if class, ok := o.(*snapshotv1.VolumeSnapshotClass); ok && class.Driver == Driver {
			w.SnapshotClasses = append(w.SnapshotClasses, readSnapshotClass(class))
		}
	}
	for _, o := range c.contents.GetStore().List() {
		if content, ok := o.(*snapshotv1.VolumeSnapshotContent); ok && content.Spec.Driver == Driver {
			all.contents[content.Name] = content
			w.Contents = append(w.Contents, readContent(content))
		}
	}
	for _, o := range c.volumeSnapshots.GetStore().List() {
		s, ok := o.(*snapshotv1.VolumeSnapshot)
		if !ok {
			continue
		}
		read := readSnapshot(s)
		// If the claim of a snapshot does not exist, the responsible driver is unknown. This
		// controller then reports the missing claim only if the snapshot has no status, because the
		// controller of another driver may already have written one.
		_, known, err := c.claims.GetStore().GetByKey(read.Claim)
		nobodys := err == nil && !known && read.Claim != "" && s.Status == nil
		if read.Guarded || all.contents[read.Content] != nil || all.claims[read.Claim] != nil || nobodys {
			all.snapshots[read.Key] = s
			w.Snapshots = append(w.Snapshots, read)
		}
	}
}
