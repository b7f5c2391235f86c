package scheduler

import (
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

// Profile is a profile of the scheduler with its plugins in their order. A plugin with weight 0
// does not score nodes.
type Profile struct {
	Name    string
	Plugins []Plugin
}

// Plugin is a plugin of a profile.
type Plugin struct {
	Name   string
	Weight int32
}

// Plugins returns the profiles of a configuration file, and the URLs of its extenders. Values that
// the file does not set have upstream's defaults for the feature gates of this process.
func Plugins(file string) (profiles []Profile, extenders []string, err error) {
	config, err := options.LoadConfigFromFile(klog.Background(), file)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration of the scheduler: %w", err)
	}
	for _, p := range config.Profiles {
		profile := Profile{Name: p.SchedulerName}
		for _, plugin := range p.Plugins.MultiPoint.Enabled {
			profile.Plugins = append(profile.Plugins, Plugin{plugin.Name, plugin.Weight})
		}
		profiles = append(profiles, profile)
	}
	for _, e := range config.Extenders {
		extenders = append(extenders, e.URLPrefix)
	}
	return profiles, extenders, nil
}
