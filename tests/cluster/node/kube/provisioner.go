package main

import (
	"context"
	"flag"
	"log"
	"os"
	"path/filepath"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	provisioner    = "rljob.test/folder"
	classNote      = "volume.kubernetes.io/storage-provisioner" // set on a claim by the controller-manager
	provisionedBy  = "pv.kubernetes.io/provisioned-by"          // set on a volume by whoever made it
	lookAgainAfter = 5 * time.Second
)

// folders makes a folder of this machine for each claim of its class, and
// removes it after the claim. The volume is a local one, so that the kubelet
// applies fsGroup to it; every real node may mount it, as if it were shared.
type folders struct {
	client kubernetes.Interface
	root   string
}

// provision is the program: provision --kubeconfig FILE --root FOLDER.
func provision(args []string) {
	flags := flag.NewFlagSet("provisioner", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	root := flags.String("root", "", "where the folders are made")
	must(flags.Parse(args))
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err)
	f := folders{kubernetes.NewForConfigOrDie(config), *root}

	// A step that fails is logged and tried again at the next look.
	watch := informers.NewSharedInformerFactory(f.client, lookAgainAfter).Core().V1()
	follow(watch.PersistentVolumeClaims().Informer(), func(o any) error { return f.make(o.(*core.PersistentVolumeClaim)) })
	follow(watch.PersistentVolumes().Informer(), func(o any) error { return f.remove(o.(*core.PersistentVolume)) })
	select {}
}

func follow(informer cache.SharedIndexInformer, step func(any) error) {
	look := func(o any) {
		if err := step(o); err != nil {
			log.Print(err)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    look,
		UpdateFunc: func(_, o any) { look(o) },
	})
	must(err)
	go informer.Run(context.Background().Done())
}

// make answers a claim. The volume's name comes from the claim's uid, so that
// doing it twice makes one.
func (f folders) make(claim *core.PersistentVolumeClaim) error {
	if claim.Annotations[classNote] != provisioner || claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		return nil
	}
	name := "pvc-" + string(claim.UID)
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o777); err != nil { // MkdirAll obeys the umask
		return err
	}
	volume := &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: provisioner}},
		Spec: core.PersistentVolumeSpec{
			Capacity:                      claim.Spec.Resources.Requests,
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimDelete,
			StorageClassName:              *claim.Spec.StorageClassName,
			ClaimRef:                      &core.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: path}},
			NodeAffinity: &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{{
				MatchExpressions: []core.NodeSelectorRequirement{
					{Key: "kubernetes.io/os", Operator: core.NodeSelectorOpIn, Values: []string{"linux"}},
				},
			}}}},
		},
	}
	_, err := f.client.CoreV1().PersistentVolumes().Create(context.Background(), volume, meta.CreateOptions{})
	if errors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// remove clears up behind a volume whose claim is gone.
func (f folders) remove(volume *core.PersistentVolume) error {
	if volume.Annotations[provisionedBy] != provisioner || volume.Status.Phase != core.VolumeReleased {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(f.root, volume.Name)); err != nil {
		return err
	}
	err := f.client.CoreV1().PersistentVolumes().Delete(context.Background(), volume.Name, meta.DeleteOptions{})
	if errors.IsNotFound(err) {
		return nil
	}
	return err
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
