package kubelet

import (
	"context"
	"fmt"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"
	"k8s.io/kubernetes/pkg/kubelet/sysctl"

	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Check returns why the kubelet would not start with the settings of spec; nil if it would, as far
// as they do not depend on the hardware.
func Check(ctx context.Context, spec nodespec.Spec) error {
	_, codecs, err := scheme.NewSchemeAndCodecs()
	if err != nil {
		return err
	}
	config, err := codec.DecodeKubeletConfiguration(ctx, codecs, []byte(configuration(spec, dirs.System(), "/resolv.conf")))
	if err != nil {
		return err
	}
	gates := utilfeature.DefaultMutableFeatureGate
	if err := gates.SetFromMap(config.FeatureGates); err != nil {
		return err
	}
	config.FailCgroupV1 = false // would check the machine, not the settings
	if err := validation.ValidateKubeletConfiguration(config, gates); err != nil {
		return err
	}
	if _, err := cpumanager.NewStaticPolicyOptions(config.CPUManagerPolicyOptions); err != nil {
		return fmt.Errorf("cpuManager: %w", err)
	}
	if _, err := topologymanager.NewPolicyOptions(klog.FromContext(ctx), config.TopologyManagerPolicyOptions); err != nil {
		return fmt.Errorf("topologyManager: %w", err)
	}
	if _, err := eviction.ParseThresholdConfig(config.EnforceNodeAllocatable, config.EvictionHard, config.EvictionSoft, config.EvictionSoftGracePeriod, nil); err != nil {
		return fmt.Errorf("eviction: %w", err)
	}
	if _, err := sysctl.NewAllowlist(append(sysctl.SafeSysctlAllowlist(ctx), config.AllowedUnsafeSysctls...)); err != nil {
		return fmt.Errorf("allowedUnsafeSysctls: %w", err)
	}
	return nil
}
