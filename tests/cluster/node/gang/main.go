// Command gang is a scheduler that places pods of a PodGroup together or not
// at all (the plugin Coscheduling of scheduler-plugins), and the controller
// that says in a PodGroup's status what has become of it.
package main

import (
	"context"
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/cli"
	"k8s.io/klog/v2"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	ctrl "sigs.k8s.io/controller-runtime"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/apis/scheduling/v1alpha1"
	"sigs.k8s.io/scheduler-plugins/pkg/controllers"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "controller" {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		control()
		return
	}
	os.Exit(cli.Run(scheduler.NewSchedulerCommand(scheduler.WithPlugin(coscheduling.Name, coscheduling.New))))
}

// control runs the controller of PodGroups alone: the one of the project also
// wants the CRD of its quotas. It takes --kubeconfig.
func control() {
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgo.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:  scheme,
		Metrics: metrics.Options{BindAddress: "0"},
	})
	utilruntime.Must(err)
	groups := controllers.PodGroupReconciler{Client: manager.GetClient(), Scheme: scheme, Workers: 1}
	utilruntime.Must(groups.SetupWithManager(manager))
	utilruntime.Must(manager.Start(context.Background()))
}
