package simulation

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Every simulated Node has a label with the key Label and a taint with the key Taint. The taint
// keeps all pods away that do not tolerate it.
const (
	Label = "orlop.test/simulated"
	Taint = "orlop.test/simulated"
)

// Tolerate lets a pod run on simulated Nodes, and only on these.
func Tolerate(spec *core.PodSpec) {
	spec.NodeSelector = map[string]string{Label: "yes"}
	spec.Tolerations = append(spec.Tolerations, core.Toleration{Key: Taint, Operator: core.TolerationOpExists})
}

// nodeObject returns a Node with the fields that a kubelet sets at the registration. The Node is
// not Ready.
func nodeObject(name string, now time.Time) *core.Node {
	amounts := core.ResourceList{
		core.ResourceCPU: resource.MustParse("4"), core.ResourceMemory: resource.MustParse("16Gi"), core.ResourcePods: resource.MustParse("110"),
		core.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	return &core.Node{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{
			Label: "yes", core.LabelHostname: name, core.LabelOSStable: "linux", core.LabelArchStable: "amd64",
		}},
		Spec: core.NodeSpec{Taints: []core.Taint{{Key: Taint, Effect: core.TaintEffectNoSchedule}}},
		Status: core.NodeStatus{
			Capacity: amounts, Allocatable: amounts, Conditions: conditions(now, now, core.ConditionFalse, "KubeletNotReady"),
			Addresses: []core.NodeAddress{{Type: core.NodeHostName, Address: name}},
			NodeInfo: core.NodeSystemInfo{
				MachineID: name, SystemUUID: name, BootID: name, KernelVersion: "6.12.0", OSImage: "simulated", ContainerRuntimeVersion: "containerd://2.0.0",
				KubeletVersion: "v1.37.0", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
}

// conditions returns the conditions of a Node, reported at now. The parameter since is the time of
// their last change. The parameters ready and why are the status and the reason of the condition
// Ready.
func conditions(now, since time.Time, ready core.ConditionStatus, why string) []core.NodeCondition {
	one := func(kind core.NodeConditionType, status core.ConditionStatus, reason string) core.NodeCondition {
		return core.NodeCondition{Type: kind, Status: status, Reason: reason, Message: "simulated", LastHeartbeatTime: meta.NewTime(now), LastTransitionTime: meta.NewTime(since)}
	}
	return []core.NodeCondition{
		one(core.NodeMemoryPressure, core.ConditionFalse, "KubeletHasSufficientMemory"),
		one(core.NodeDiskPressure, core.ConditionFalse, "KubeletHasNoDiskPressure"),
		one(core.NodePIDPressure, core.ConditionFalse, "KubeletHasSufficientPID"),
		one(core.NodeReady, ready, why),
	}
}

// nodePatch returns the patch that reports the condition Ready at now.
func nodePatch(now, since time.Time) ([]byte, error) {
	return json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions(now, since, core.ConditionTrue, "KubeletReady")}})
}

// podPatch returns the patch by which an action reports the status of the pod p. The parameter what
// is the kind of the action.
func podPatch(p *core.Pod, what kind, now time.Time) ([]byte, error) {
	at := meta.NewTime(now)
	s := core.PodStatus{Phase: core.PodPending, StartTime: &at}
	if p.Status.StartTime != nil {
		s.StartTime = p.Status.StartTime
	}
	works, why := core.ConditionFalse, "ContainersNotReady"
	if what == reportRunning {
		s.Phase, works, why = core.PodRunning, core.ConditionTrue, ""
		s.PodIP = addressOf(p)
		s.PodIPs = []core.PodIP{{IP: s.PodIP}}
	} else if what == reportEnded {
		s.Phase, why = core.PodSucceeded, "PodCompleted"
	}
	for _, kind := range []core.PodConditionType{core.PodReadyToStartContainers, core.PodInitialized, core.PodReady, core.ContainersReady} {
		c := core.PodCondition{Type: kind, Status: core.ConditionTrue, LastTransitionTime: at}
		if kind == core.PodReady || kind == core.ContainersReady {
			c.Status, c.Reason = works, why
		}
		s.Conditions = append(s.Conditions, c)
	}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, containerStatus(c, string(p.UID), what, at))
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": s})
}

func containerStatus(c core.Container, pod string, what kind, at meta.Time) core.ContainerStatus {
	id := "containerd://" + pod + "-" + c.Name
	s := core.ContainerStatus{Name: c.Name, Image: c.Image}
	switch what {
	case reportRunning:
		yes := true
		s.Ready, s.Started, s.ContainerID, s.ImageID = true, &yes, id, c.Image
		s.State.Running = &core.ContainerStateRunning{StartedAt: at}
	case reportEnded:
		s.ContainerID, s.ImageID = id, c.Image
		s.State.Terminated = &core.ContainerStateTerminated{Reason: "Completed", ContainerID: id, StartedAt: at, FinishedAt: at}
	default:
		s.State.Waiting = &core.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return s
}

// addressOf derives the address of a pod from its UID. The range belongs to no machine. Two pods
// can have the same address, which is rare.
func addressOf(p *core.Pod) string {
	h := fnv.New32a()
	h.Write([]byte(p.UID)) // a hash returns no error
	n := h.Sum32()
	return fmt.Sprintf("10.%d.%d.%d", 192+(n>>16)%32, (n>>8)%256, 1+n%254)
}
