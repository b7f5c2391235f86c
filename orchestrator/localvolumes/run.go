package localvolumes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/early"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component that decides.
const Name = "local-volumes"

// again is how long after a failure it is tried again; patience is how long one request may take.
const (
	again    = 2 * time.Second
	patience = 10 * time.Second
)

// Controllers describes the component that decides, without its Run function. There is none where local volumes are not wanted.
func Controllers(spec nodespec.Spec, dirs layout.Dirs) []component.Component {
	if spec.LocalVolumes.Disabled {
		return nil
	}
	config := kubeconfig.File(spec, dirs.Controllers, Name, nodespec.ControllersCert, nodespec.ControllersKey)
	return []component.Component{{Process: component.Controllers, Name: Name, Files: []component.File{config}}}
}

// Run decides until ctx is done. rights waits until the component may do what it does.
func Run(ctx context.Context, spec nodespec.Spec, dirs layout.Dirs, rights func(context.Context) error, announce component.Announce) error {
	own, acting, err := early.Identity(ctx, Name, bootstrap.LocalVolumesAccount, dirs, rights, announce)
	if own == nil {
		return err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typed.EventSinkImpl{Interface: acting.CoreV1().Events("")})
	c := newController(spec.LocalVolumes.Reserve, own, acting, broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "orlop-" + Name}))
	return c.run(ctx, func(detail string) { announce(Name, true, detail) })
}

// controller does what Step says. One pass at a time is made, and it sees what the ones before promised.
type controller struct {
	reserve    int64
	client     kubernetes.Interface
	events     record.EventRecorder
	factories  []informers.SharedInformerFactory
	claims     cache.SharedIndexInformer
	volumes    cache.SharedIndexInformer
	classes    cache.SharedIndexInformer
	nodes      cache.SharedIndexInformer
	capacities cache.SharedIndexInformer
	changed    chan struct{}
	promised   map[string]string    // by volume, the version that was written upon, none for a new one: a cache that still has it is behind
	told       map[types.UID]string // why a claim gets nothing
}

func newController(reserve int64, own, acting kubernetes.Interface, events record.EventRecorder) *controller {
	all := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(lean))
	system := informers.NewSharedInformerFactoryWithOptions(own, 0, informers.WithTransform(lean), informers.WithNamespace(metav1.NamespaceSystem))
	return &controller{
		reserve: reserve, client: acting, events: events, factories: []informers.SharedInformerFactory{all, system},
		claims: all.Core().V1().PersistentVolumeClaims().Informer(), volumes: all.Core().V1().PersistentVolumes().Informer(),
		classes: all.Storage().V1().StorageClasses().Informer(), nodes: all.Core().V1().Nodes().Informer(),
		capacities: system.Storage().V1().CSIStorageCapacities().Informer(),
		changed:    make(chan struct{}, 1), promised: map[string]string{}, told: map[types.UID]string{},
	}
}

// lean takes from objects what is large and nobody here reads.
func lean(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion,
			Labels: map[string]string{corev1.LabelHostname: node.Labels[corev1.LabelHostname]},
			Annotations: map[string]string{
				ReportAnnotation:   node.Annotations[ReportAnnotation],
				ObsoleteAnnotation: node.Annotations[ObsoleteAnnotation],
			},
		}}, nil
	}
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return object, nil
}

func (c *controller) run(ctx context.Context, tell func(detail string)) error {
	change := func() {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	every := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { change() }, UpdateFunc: func(any, any) { change() }, DeleteFunc: func(any) { change() },
	}
	onNode := every
	onNode.UpdateFunc = func(before, now any) { // a Node speaks up every few seconds
		if b, n := readNode(before), readNode(now); b == nil || n == nil || !sameNode(*b, *n) {
			change()
		}
	}
	synced := []cache.InformerSynced{}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		c.claims: every, c.volumes: every, c.classes: every, c.capacities: every, c.nodes: onNode,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("cannot watch: %w", err)
		}
		synced = append(synced, informer.HasSynced)
	}
	for _, f := range c.factories {
		f.Start(ctx.Done())
		defer f.Shutdown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // asked to stop
	}
	component.Repeat(ctx, c.changed, again, c.pass, tell)
	return nil
}

// pass looks at everything once and does what Step says. What is refused is told, and no reason for the rest to wait. It says how
// things are; with nothing to say, because the cache does not show yet what was promised, nothing: the cache's next change, which
// brings it, begins the next pass.
func (c *controller) pass(ctx context.Context) (string, error) {
	behind, err := c.behind(ctx)
	if behind || err != nil {
		return "", err
	}
	world, objects := c.world()
	ops := Step(world)
	quiet := map[types.UID]bool{} // claims that are told nothing any more
	for uid := range c.told {
		quiet[uid] = true
	}
	var first error
	for _, op := range ops {
		if r, ok := op.(Refuse); ok {
			claim := objects.claims[r.Claim]
			delete(quiet, claim.UID)
			if c.told[claim.UID] != r.Why {
				c.told[claim.UID] = r.Why
				c.events.Event(claim, corev1.EventTypeWarning, "LocalVolumeRefused", r.Why)
			}
			continue
		}
		doing, done := context.WithTimeout(ctx, patience)
		err := c.do(doing, objects, op)
		done()
		if err != nil && !apierrors.IsConflict(err) && first == nil { // a conflict: the cache is about to change
			first = fmt.Errorf("cannot %s: %w", op, err)
		}
	}
	for uid := range quiet {
		delete(c.told, uid)
	}
	able := 0
	for _, n := range world.Nodes {
		if n.Report.Problem == "" {
			able++
		}
	}
	return fmt.Sprintf("%d volumes; %d of %d nodes can have them", len(world.Volumes), able, len(world.Nodes)), first
}

// behind says whether the cache lacks something that was promised: deciding by it could promise the same room twice.
func (c *controller) behind(ctx context.Context) (bool, error) {
	for name, version := range c.promised {
		cached := ""
		if object, found, err := c.volumes.GetStore().GetByKey(name); err != nil {
			return false, err
		} else if v, ok := object.(*corev1.PersistentVolume); found && ok {
			cached = v.ResourceVersion
		}
		if cached == version { // the cache is behind, unless the server refused it, or it has gone already
			asking, done := context.WithTimeout(ctx, patience)
			v, err := c.client.CoreV1().PersistentVolumes().Get(asking, name, metav1.GetOptions{})
			done()
			if err != nil && !apierrors.IsNotFound(err) {
				return true, fmt.Errorf("volume %s: cannot be read: %w", name, err)
			}
			if err == nil && v.ResourceVersion != version {
				return true, nil
			}
		}
		delete(c.promised, name)
	}
	return false, nil
}

// objects are what the world was read from.
type objects struct {
	claims     map[string]*corev1.PersistentVolumeClaim
	volumes    map[string]*corev1.PersistentVolume
	classes    map[string]*storagev1.StorageClass
	capacities map[string]*storagev1.CSIStorageCapacity
}

// world reads the caches.
func (c *controller) world() (World, objects) {
	w := World{Reserve: c.reserve}
	all := objects{
		claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{},
		classes: map[string]*storagev1.StorageClass{}, capacities: map[string]*storagev1.CSIStorageCapacity{},
	}
	for _, o := range c.nodes.GetStore().List() {
		if n := readNode(o); n != nil {
			w.Nodes = append(w.Nodes, *n)
		}
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
	return w, all
}
